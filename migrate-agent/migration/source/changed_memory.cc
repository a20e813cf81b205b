#include "migrate-agent/migration/source/changed_memory.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "migrate-agent/linux/procfs/container.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/pages/page_scan.h"
#include "src/base/log.h"

namespace gcr::migration {
namespace {

using process::WriteTracker;

constexpr std::uint64_t kPageBytes = 4096;
/// The highest address of user space with five levels of page tables.
constexpr std::uint64_t kUserSpaceEnd = std::uint64_t{1} << 56;

/// The mode and the number of the seccomp filters of a task.
std::pair<std::string, std::string> filters_of(const std::string& task) {
  auto fields = procfs::status_fields(task);
  return {fields["Seccomp"], fields["Seccomp_filters"]};
}

/// Whether a thread has filters that may end its process for calling userfaultfd(2). Those of a
/// container allow it if gcr-runtime says so; filters are only ever added to them.
bool has_unknown_filters(pid_t pid, pid_t root) {
  const std::pair<std::string, std::string> known = procfs::Container::allows_userfaultfd(root)
                                                        ? filters_of(std::to_string(root))
                                                        : std::pair("0", "0");
  return std::ranges::any_of(procfs::threads(pid), [&](pid_t thread) {
    return filters_of(fmt::format("{}/task/{}", pid, thread)) != known;
  });
}

/// Whether a disk may be writing into its memory.
bool has_direct_io(pid_t pid) {
  return std::ranges::any_of(procfs::descriptor_links(pid), [pid](const auto& descriptor) {
    if (!descriptor.link.starts_with('/')) return false;
    const std::string text =
        procfs::read_text(fmt::format("/proc/{}/fdinfo/{}", pid, descriptor.number));
    const std::size_t at = text.find("flags:");
    return at != std::string::npos &&
           (std::strtoul(text.c_str() + at + 6, nullptr, 8) & O_DIRECT) != 0;
  });
}

/// Whole pages, as the process tells them: nothing that is no range of user space.
AddressRanges whole_pages(const std::vector<gpu::GpuAccess::Pages>& told) {
  AddressRanges ranges;
  for (const gpu::GpuAccess::Pages& one : told) {
    if (one.address >= kUserSpaceEnd || one.bytes > kUserSpaceEnd - one.address) continue;
    const std::uint64_t end = (one.address + one.bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    ranges = united(ranges, {{one.address / kPageBytes * kPageBytes, end}});
  }
  return ranges;
}

}  // namespace

ChangedMemory::ChangedMemory(pid_t root, const std::vector<migration::Member*>& members)
    : root_(root) {
  for (const migration::Member* member : members) {
    members_.emplace(member->pid(), Member{member->access.get()});
  }
}

/// Begins to track the writes of a process, once.
Status ChangedMemory::track(pid_t pid, Member& member) const {
  if (std::exchange(member.asked, true)) return {};
  if (has_unknown_filters(pid, root_)) {
    return Error(Code::kUnsupported, "it has filters for system calls");
  }
  GCR_ASSIGN(UniqueFd userfaultfd, member.access->watch_memory());
  GCR_ASSIGN(auto tracker, WriteTracker::create(pid, std::move(userfaultfd)));
  member.tracker.emplace(std::move(tracker));
  return {};
}

Result<AddressRanges> ChangedMemory::round(pid_t pid, const AddressRanges& mappings) {
  const auto member = members_.find(pid);
  if (member == members_.end()) return process::present_pages(pid, mappings);
  auto& [access, asked, tracker] = member->second;
  const auto found = [&]() -> Result<AddressRanges> {
    GCR_TRY(track(pid, member->second));
    if (!tracker) return process::present_pages(pid, mappings);
    GCR_ASSIGN(AddressRanges pages, tracker->round(mappings));
    GCR_ASSIGN(const auto registered, access->registered_memory());
    if (has_direct_io(pid)) return Error(Code::kUnsupported, "it has files open for direct I/O");
    tracker->distrust(whole_pages(registered));
    return pages;
  }();
  if (found) return found;
  spdlog::debug("writes to the memory of process {} are not tracked: {}", pid,
                found.error().message());
  tracker.reset();
  return process::present_pages(pid, mappings);
}

AddressRanges ChangedMemory::last_round(pid_t pid, const AddressRanges& mappings,
                                        const AddressRanges& pages) const {
  const auto member = members_.find(pid);
  if (member == members_.end() || !member->second.tracker) return pages;
  const auto changed = member->second.tracker->last_round(mappings, pages);
  return changed ? *changed : pages;
}

AddressRanges ChangedMemory::tracked(pid_t pid) const {
  const auto member = members_.find(pid);
  if (member == members_.end() || !member->second.tracker) return {};
  return member->second.tracker->tracked();
}

std::uint64_t ChangedMemory::written_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [pid, member] : members_) {
    if (member.tracker) bytes += member.tracker->written_bytes();
  }
  return bytes;
}

bool ChangedMemory::tracks() const {
  return std::ranges::any_of(members_,
                             [](const auto& one) { return one.second.tracker.has_value(); });
}

}  // namespace gcr::migration

#include "migrate-agent/process/pages/private_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/unique_fd.h"
#include "src/base/units.h"

namespace gcr::process {
namespace {

/// Less is not worth an image of its own.
constexpr std::uint64_t kLittle = kMiB;

/// Those between two of `outer`, all from one piece: they touch, and the kernel counts them alike.
AddressRanges between(const MemoryMappings& mappings, const AddressRanges& outer) {
  AddressRanges found, waiting;
  bool in_piece = false;
  auto next = outer.begin();
  const MemoryMapping* before = nullptr;
  for (const MemoryMapping& mapping : mappings) {
    in_piece = in_piece && mapping.anonymous && mapping.range.start == before->range.end &&
               mapping.accounted == before->accounted;
    if (!in_piece) waiting.clear();
    if (next != outer.end() && next->start == mapping.range.start) {
      found.insert(found.end(), waiting.begin(), waiting.end());
      waiting.clear();
      in_piece = true;
      ++next;
    } else if (in_piece) {
      waiting.push_back(mapping.range);
    }
    before = &mapping;
  }
  return found;
}

}  // namespace

const MemoryMappings& PrivateMemory::mappings(pid_t pid) {
  const auto [entry, is_new] = mappings_.try_emplace(pid);
  if (!is_new) return entry->second;
  const auto known = known_.find(pid);
  auto read = known == known_.end() ? read_mappings(pid) : read_mappings(pid, known->second);
  if (read) entry->second = std::move(*read);
  return entry->second;
}

bool PrivateMemory::is_shared(pid_t pid, const AddressRange& range) {
  const auto has_it = [&](pid_t other) {
    const auto& theirs = mappings(other);
    const auto found = std::ranges::lower_bound(
        theirs, range.start, {}, [](const MemoryMapping& one) { return one.range.start; });
    return found != theirs.end() && found->plain && found->range == range;
  };
  const auto own = parents_.find(pid);
  if (own != parents_.end() && parents_.contains(own->second) && has_it(own->second)) return true;
  return std::ranges::any_of(
      parents_, [&](const auto& one) { return one.second == pid && has_it(one.first); });
}

void PrivateMemory::keep_joinable(pid_t pid) {
  const AddressRanges divided = between(mappings(pid), of(pid));
  if (divided.empty()) return;
  // Only this file lets write what the process itself may not write.
  const UniqueFd memory(::open(fmt::format("/proc/{}/mem", pid).c_str(), O_RDWR | O_CLOEXEC));
  for (const AddressRange& range : divided) {
    std::byte first{};
    const auto at = static_cast<off_t>(range.start);
    if (::pread(memory.get(), &first, 1, at) != 1 || ::pwrite(memory.get(), &first, 1, at) != 1) {
      return;  // a kernel that forbids it
    }
  }
}

AddressRanges PrivateMemory::of(pid_t pid) {
  if (parents_.empty()) {
    for (const pid_t one : procfs::stopped_tree(root_)) {
      const auto stat = procfs::read_stat(one);
      if (stat) parents_[one] = stat->parent;
    }
  }
  AddressRanges ranges;
  std::uint64_t bytes = 0;
  for (const MemoryMapping& mapping : mappings(pid)) {
    if (mapping.asynchronous_io) return {};
    if (!mapping.plain || mapping.anonymous_bytes == 0 || is_shared(pid, mapping.range)) {
      continue;
    }
    ranges.push_back(mapping.range);
    bytes += mapping.anonymous_bytes;
  }
  if (bytes < kLittle) ranges.clear();
  return ranges;
}

}  // namespace gcr::process

#include "migrate-agent/process/pages/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <set>
#include <string_view>

#include "migrate-agent/linux/procfs/directory.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/files.h"
#include "migrate-agent/process/pages/page_scan.h"
#include "src/base/side_by_side.h"
#include "src/base/units.h"

namespace gcr::process {
namespace {

/// Less is not worth an image of its own.
constexpr std::uint64_t kLittleShared = kMiB;
/// The kernel looks at each page for what is there: so much at a time by one thread.
constexpr std::uint64_t kPartBytes = 256 * kMiB;

/// How the kernel calls it, and how it is called when CRIU has made it again.
bool is_nameless(std::string_view path) {
  return path == "/dev/zero" || path == "/memfd:/dev/zero";
}

/// The memories that a process has open, by inode.
std::set<std::uint64_t> opened(pid_t pid, dev_t device) {
  std::set<std::uint64_t> inodes;
  for (const procfs::DescriptorLink& descriptor : procfs::descriptor_links(pid)) {
    std::string_view link = descriptor.link;
    if (!link.ends_with(kDeleted)) continue;
    link.remove_suffix(kDeleted.size());
    if (!is_nameless(link)) continue;
    const auto id = procfs::id_of(fmt::format("/proc/{}/fd/{}", pid, descriptor.number));
    if (id.first == device) inodes.insert(id.second);
  }
  return inodes;
}

/// Nothing if it cannot be opened, or is not worth it, or is sealed as a memfd of a program's may
/// be.
std::shared_ptr<const UniqueFd> open(pid_t pid, const Mapping& mapping, std::uint64_t& size_bytes) {
  const std::string path = fmt::format("/proc/{}/map_files/{}", pid, mapping.range);
  auto file = std::make_shared<const UniqueFd>(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!*file || ::fstat(file->get(), &status) != 0 || status.st_dev != mapping.device ||
      status.st_ino != mapping.inode || ::fcntl(file->get(), F_GET_SEALS) != F_SEAL_SEAL) {
    return nullptr;
  }
  size_bytes = static_cast<std::uint64_t>(status.st_size);
  const bool worth = static_cast<std::uint64_t>(status.st_blocks) * 512 >= kLittleShared;
  return worth && size_bytes <= kMostSharedBytes ? file : nullptr;
}

/// Appends the pages in a part of the memory. Gives the last run of pages that it has seen, which
/// may reach far behind the part.
Result<AddressRange> add_pages(int file, const AddressRange& part, AddressRanges& pages) {
  AddressRange run{part.start, part.start};
  while (run.end < part.end) {
    const off_t data = ::lseek(file, static_cast<off_t>(run.end), SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;
    const off_t hole = data < 0 ? data : ::lseek(file, data, SEEK_HOLE);
    if (hole < 0) return Error::from_errno(errno, "cannot find the pages of shared memory");
    run = {static_cast<std::uint64_t>(data),
           round_up(static_cast<std::uint64_t>(hole), kPageBytes)};
    if (run.start < part.end) append(pages, {run.start, std::min(run.end, part.end)});
  }
  return run;
}

/// Looks for pages, one part after the other, on several threads. The kernel looks for a hole as
/// far as there is none, so what one thread has passed no other looks at again: in memory
/// without holes all parts would else take the time of all memory behind them.
class PageSearch {
 public:
  explicit PageSearch(const SharedMemory& memory)
      : memory_(memory), parts_(round_up(memory.size_bytes, kPartBytes) / kPartBytes) {}

  Result<AddressRanges> run() {
    GCR_TRY(share_out(parts_.size(), kMostReaders, [&](std::size_t i) { return look(i); }));
    AddressRanges pages;
    for (const Part& part : parts_) {
      for (const AddressRange& range : part.pages) append(pages, range);
    }
    return pages;
  }

 private:
  struct Part {
    std::atomic<bool> full = false;
    AddressRanges pages{};
  };

  AddressRange range_of(std::size_t part) const {
    const std::uint64_t size = round_up(memory_.size_bytes, kPageBytes);
    return {part * kPartBytes, std::min((part + 1) * kPartBytes, size)};
  }

  Status look(std::size_t i) {
    if (parts_[i].full) {
      append(parts_[i].pages, range_of(i));
      return {};
    }
    // A descriptor has one position: each thread needs one of its own.
    const std::string path = fmt::format("/proc/self/fd/{}", memory_.file->get());
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) return Error::from_errno(errno, "cannot open shared memory");
    GCR_ASSIGN(const AddressRange run, add_pages(file.get(), range_of(i), parts_[i].pages));
    for (std::size_t next = i + 1; next < parts_.size(); ++next) {
      const AddressRange range = range_of(next);
      if (range.end > run.end) break;
      if (range.start >= run.start) parts_[next].full = true;
    }
    return {};
  }

  const SharedMemory& memory_;
  std::vector<Part> parts_;
};

/// The file system of memory without a name, which no process can mount; 0 if it cannot be told.
dev_t device_of_nameless_memory() {
  const UniqueFd memory(::memfd_create("gcr", MFD_CLOEXEC));
  return procfs::id_of(memory).first;
}

/// Without holes, as page-locked memory is.
bool is_full(const SharedMemory& memory) {
  struct stat status {};
  return ::fstat(memory.file->get(), &status) == 0 &&
         static_cast<std::uint64_t>(status.st_blocks) * 512 >=
             round_up(memory.size_bytes, kPageBytes);
}

}  // namespace

Result<std::vector<SharedMemory>> shared_memories(const std::vector<pid_t>& pids,
                                                  const MayMove& may_move) {
  const dev_t device = device_of_nameless_memory();
  std::set<std::uint64_t> for_criu;
  std::map<std::uint64_t, SharedMemory> found;
  for (const pid_t pid : pids) {
    const std::vector<Mapping> mappings = named_mappings(pid, "/dev/zero");
    const bool by_kernel = !named_mappings(pid, "/[aio]").empty();
    for_criu.merge(opened(pid, device));
    bool asked = false;
    for (const Mapping& mapping : mappings) {
      if (mapping.device != device || !mapping.deleted || !is_nameless(mapping.path)) continue;
      if (by_kernel || !mapping.shared || mapping.inode > std::numeric_limits<std::uint32_t>::max())
        for_criu.insert(mapping.inode);
      if (for_criu.contains(mapping.inode) || found.contains(mapping.inode)) continue;
      SharedMemory memory{device, static_cast<std::uint32_t>(mapping.inode), 0, nullptr};
      memory.file = open(pid, mapping, memory.size_bytes);
      if (memory.file == nullptr) continue;
      const Status allowed = asked || !may_move ? Status() : may_move(pid);
      if (!allowed && allowed.error().code() == Code::kNotFound) break;
      GCR_TRY(allowed);
      asked = true;
      found.emplace(mapping.inode, std::move(memory));
    }
  }
  std::vector<SharedMemory> memories;
  for (auto& [inode, memory] : found) {
    if (!for_criu.contains(inode)) memories.push_back(std::move(memory));
  }
  return memories;
}

Result<AddressRanges> pages_of(const SharedMemory& memory) {
  if (is_full(memory)) return AddressRanges{{0, round_up(memory.size_bytes, kPageBytes)}};
  return PageSearch(memory).run();
}

ReadMemory reader_of(const SharedMemory& memory) {
  return [file = memory.file](std::uint64_t offset, std::span<std::byte> bytes) -> Status {
    while (!bytes.empty()) {
      const ssize_t got =
          ::pread(file->get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error::from_errno(errno, "cannot read shared memory");
      if (got == 0) break;
      bytes = bytes.subspan(static_cast<std::size_t>(got));
      offset += static_cast<std::uint64_t>(got);
    }
    std::ranges::fill(bytes, std::byte{0});  // beyond its end the last page is zeros
    return {};
  };
}

}  // namespace gcr::process

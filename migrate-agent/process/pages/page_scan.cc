#include "migrate-agent/process/pages/page_scan.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "src/base/pagemap_scan.h"

namespace gcr::process {
namespace {

constexpr std::size_t kRegionsAtOnce = 1024;
constexpr std::size_t kEntriesAtOnce = 64 * 1024;

/// Appends what one request finds from the start of `where` on; gives where it ended.
Result<std::uint64_t> find_some(int pagemap, const PageKind& kind, const AddressRange& where,
                                AddressRanges& found) {
  std::array<pagemap::Region, kRegionsAtOnce> regions;
  pagemap::ScanArguments arguments{};
  arguments.size = sizeof(arguments);
  arguments.flags = kind.flags;
  arguments.start = where.start;
  arguments.end = where.end;
  arguments.vec = reinterpret_cast<std::uint64_t>(regions.data());
  arguments.vec_len = regions.size();
  arguments.category_inverted = kind.none_of;
  arguments.category_mask = kind.all_of | kind.none_of;
  // What is asked for is the same for all regions: adjacent ones become one. The kernel is ten
  // times as fast where it is asked for one category and for nothing else.
  arguments.return_mask = kind.all_of;
  const int count = ::ioctl(pagemap, pagemap::kScan, &arguments);
  if (count < 0 && errno == ENOTTY) {
    return Error(Code::kUnsupported, "the kernel has no PAGEMAP_SCAN");
  }
  if (count < 0) return Error::from_errno(errno, "cannot ask for the pages of a process");
  // Linux up to 6.18 at least says too low where it ended, if it had to begin once more to fill the
  // array and then came to the end: what it found is the surer sign.
  std::uint64_t end = arguments.walk_end;
  for (int i = 0; i < count; ++i) {
    const pagemap::Region& region = regions[static_cast<std::size_t>(i)];
    append(found, {region.start, region.end});
    end = std::max(end, region.end);
  }
  if (end <= where.start) return Error(Code::kIo, "PAGEMAP_SCAN made no progress");
  return end;
}

}  // namespace

Result<PageScan> PageScan::open(pid_t pid) {
  const std::string path = fmt::format("/proc/{}/pagemap", pid);
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return Error::from_errno(errno, "cannot open " + path);
  return PageScan(std::move(file));
}

Status PageScan::find_present(const AddressRange& where, AddressRanges& found) const {
  std::vector<std::uint64_t> entries(kEntriesAtOnce);
  for (std::uint64_t at = where.start; at < where.end;) {
    const std::uint64_t wanted =
        std::min<std::uint64_t>((where.end - at) / kPageBytes, entries.size());
    const ssize_t got = ::pread(pagemap_.get(), entries.data(), wanted * sizeof(entries[0]),
                                static_cast<off_t>(at / kPageBytes * sizeof(entries[0])));
    if (got < static_cast<ssize_t>(sizeof(entries[0]))) {
      return Error::from_errno(got < 0 ? errno : ESRCH, "cannot read the page map of a process");
    }
    for (const std::uint64_t entry :
         std::span(entries).first(static_cast<std::size_t>(got) / sizeof(entries[0]))) {
      if ((entry & (pagemap::kEntryPresent | pagemap::kEntryFileOrShared)) ==
          pagemap::kEntryPresent) {
        append(found, {at, at + kPageBytes});
      }
      at += kPageBytes;
    }
  }
  return {};
}

Status PageScan::find(const PageKind& kind, const AddressRange& where, AddressRanges& found) const {
  for (AddressRange rest = where; rest.start < rest.end;) {
    GCR_ASSIGN(rest.start, find_some(pagemap_.get(), kind, rest, found));
  }
  return {};
}

Result<AddressRanges> present_pages(pid_t pid, const AddressRanges& where) {
  constexpr PageKind kInMemory{.all_of = pagemap::kIsPresent,
                               .none_of = pagemap::kIsTheZeroPage | pagemap::kIsFile};
  GCR_ASSIGN(const PageScan scan, PageScan::open(pid));
  AddressRanges found;
  for (const AddressRange& range : where) {
    Status scanned = scan.find(kInMemory, range, found);
    if (!scanned && scanned.error().code() == Code::kUnsupported) {
      scanned = scan.find_present(range, found);
    }
    GCR_TRY(scanned);
  }
  return found;
}

}  // namespace gcr::process

#include "migrate-agent/memory/present_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>

#include "src/base/pagemap_scan.h"
#include "src/base/unique_fd.h"

namespace gcr::process {
namespace {

constexpr std::size_t kRegionsAtOnce = 1024;

/// Appends what one request finds from `start` on; gives where it ended.
Result<std::uint64_t> scan(int pagemap, const AddressRange& where,
                           std::vector<AddressRange>& found) {
  std::array<pagemap::Region, kRegionsAtOnce> regions;
  pagemap::ScanArguments arguments{};
  arguments.size = sizeof(arguments);
  arguments.start = where.start;
  arguments.end = where.end;
  arguments.vec = reinterpret_cast<std::uint64_t>(regions.data());
  arguments.vec_len = regions.size();
  arguments.category_inverted = pagemap::kIsTheZeroPage | pagemap::kIsFile;
  arguments.category_mask = pagemap::kIsPresent | arguments.category_inverted;
  const int count = ::ioctl(pagemap, pagemap::kScan, &arguments);
  if (count < 0) return Error::from_errno(errno, "cannot ask which pages are in memory");
  for (int i = 0; i < count; ++i) {
    const pagemap::Region& region = regions[static_cast<std::size_t>(i)];
    if (!found.empty() && found.back().end == region.start) {
      found.back().end = region.end;
    } else {
      found.push_back({region.start, region.end});
    }
  }
  if (arguments.walk_end <= where.start) return Error(Code::kIo, "a scan of pages does not go on");
  return arguments.walk_end;
}

}  // namespace

bool can_scan_pages() {
  const auto here = reinterpret_cast<std::uint64_t>(&kRegionsAtOnce);
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t start = here / page * page;
  return present_pages(::getpid(), {{start, start + page}}).has_value();
}

Result<std::vector<AddressRange>> present_pages(pid_t pid, const std::vector<AddressRange>& where) {
  const std::string path = fmt::format("/proc/{}/pagemap", pid);
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return Error::from_errno(errno, "cannot open " + path);
  std::vector<AddressRange> found;
  for (AddressRange rest : where) {
    while (rest.start < rest.end) {
      GCR_ASSIGN(rest.start, scan(file.get(), rest, found));
    }
  }
  return found;
}

}  // namespace gcr::process

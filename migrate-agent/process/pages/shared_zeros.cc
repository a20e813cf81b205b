#include "migrate-agent/process/pages/shared_zeros.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "migrate-agent/process/inspect/files.h"
#include "migrate-agent/process/pages/shared_memory.h"
#include "migrate-agent/process/pages/zero_scan.h"
#include "src/base/unique_fd.h"
#include "src/base/units.h"

namespace gcr::process {
namespace {

/// Less costs CRIU less than a millisecond.
constexpr std::uint64_t kWorthLooking = kMiB;

/// What the kernel calls it, and no memfd can be called: CRIU has one in what it dumps.
constexpr std::string_view kAnonymous = "/dev/zero";

Result<std::uint64_t> drop_zeros(const UniqueFd& file) {
  const auto read = [&](std::uint64_t offset, std::span<std::byte> bytes) -> Status {
    const ssize_t got = ::pread(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0) return Error::from_errno(errno, "cannot read shared memory");
    // Beyond its end the last page is zeros.
    std::ranges::fill(bytes.subspan(static_cast<std::size_t>(got)), std::byte{0});
    return {};
  };
  GCR_ASSIGN(const ZeroScan scan, find_zero_pages(data_of(file), read));
  std::uint64_t dropped = 0;
  for (const AddressRange& range : scan.zeros) {
    if (::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(range.start), static_cast<off_t>(range.bytes())) != 0) {
      return Error::from_errno(errno, "cannot give shared memory back");
    }
    dropped += range.bytes();
  }
  return dropped;
}

}  // namespace

std::uint64_t drop_shared_zeros(const std::vector<pid_t>& pids) {
  const dev_t device = device_of_nameless_memory();
  std::set<std::uint64_t> seen;
  std::uint64_t dropped = 0;
  for (const pid_t pid : pids) {
    for (const Mapping& mapping : named_mappings(pid)) {
      if (mapping.device != device || mapping.path != kAnonymous ||
          !seen.insert(mapping.inode).second)
        continue;
      const std::string path = fmt::format("/proc/{}/map_files/{}", pid, mapping.range);
      const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
      struct stat status {};
      if (!file || ::fstat(file.get(), &status) != 0 || status.st_dev != device ||
          static_cast<std::uint64_t>(status.st_blocks) * 512 < kWorthLooking) {
        continue;
      }
      const auto bytes = drop_zeros(file);
      if (bytes) {
        dropped += *bytes;
      } else {
        spdlog::debug("zeros of {} stay: {}", path, bytes.error().message());
      }
    }
  }
  return dropped;
}

}  // namespace gcr::process

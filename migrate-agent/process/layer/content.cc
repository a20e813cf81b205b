#include "migrate-agent/process/layer/content.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

namespace gcr::layer {
namespace {

/// An archive's header lists them in less than 1.5 MiB.
constexpr std::size_t kMaxExtents = 32768;

}  // namespace

Result<std::vector<Extent>> data_of(const UniqueFd& file, std::uint64_t size) {
  std::vector<Extent> extents;
  const auto end = static_cast<off_t>(size);
  for (off_t at = 0; at < end;) {
    const off_t data = ::lseek(file.get(), at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;  // nothing but holes
    if (data < 0) return Error::from_errno(errno, "cannot find its data");
    if (data >= end) break;
    off_t hole = extents.size() + 1 < kMaxExtents ? ::lseek(file.get(), data, SEEK_HOLE) : end;
    // It was truncated meanwhile.
    if (hole <= data) hole = end;
    at = std::min(hole, end);
    extents.push_back({static_cast<std::uint64_t>(data), static_cast<std::uint64_t>(at - data)});
  }
  return extents;
}

}  // namespace gcr::layer

// The content of a file, with its holes.
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::layer {

struct Extent {
  std::uint64_t offset, bytes;
  std::uint64_t end() const { return offset + bytes; }
};

/// Returns where the first `size` bytes of a file have data. From some number of extents on, the
/// rest counts as data.
Result<std::vector<Extent>> data_of(const UniqueFd& file, std::uint64_t size);

}  // namespace gcr::layer

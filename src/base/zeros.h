// Test for memory that is all zero.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

namespace gcr {

/// Returns whether all of `bytes` are zero; true if there are none.
inline bool is_zero(std::span<const std::byte> bytes) {
  // Each byte is as the one before it: a comparison at the speed of memory.
  return bytes.empty() || (bytes.front() == std::byte{0} &&
                           std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

}  // namespace gcr

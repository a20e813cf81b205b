// Test for memory that is all zero.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

namespace gcr {

/// Returns whether all of `bytes` are zero; there must be at least one.
inline bool is_zero(std::span<const std::byte> bytes) {
  return bytes.front() == std::byte{0} &&
         std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

}  // namespace gcr

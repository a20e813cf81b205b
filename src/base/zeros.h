// Whether memory is zero.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

namespace gcr {

/// `bytes` has at least one.
inline bool is_zero(std::span<const std::byte> bytes) {
  return bytes.front() == std::byte{0} &&
         std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

}  // namespace gcr

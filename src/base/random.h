// Random bytes for keys and identifiers.
#pragma once

#include <sys/random.h>

#include <array>
#include <cstddef>
#include <stdexcept>

namespace gcr {

/// From the kernel's generator. Waits while that is not seeded yet, early in a boot. Throws if the
/// kernel has none.
template <std::size_t kCount>
std::array<std::byte, kCount> random_bytes() {
  static_assert(kCount <= 256, "more may be interrupted by a signal: getrandom(2)");
  std::array<std::byte, kCount> bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(kCount)) {
    throw std::runtime_error("the kernel gives no random bytes");
  }
  return bytes;
}

}  // namespace gcr

// Numbers in this project's wire and disk formats: little-endian, at any address.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gcr {

/// Writes `value` to `to`, which has sizeof(Number) bytes.
template <class Number>
void store_little_endian(std::byte* to, Number value) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    to[i] = static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i));
  }
}

/// The number at `from`, which has sizeof(Number) bytes.
template <class Number>
Number load_little_endian(const std::byte* from) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    value |= std::to_integer<std::uint64_t>(from[i]) << (8 * i);
  }
  return static_cast<Number>(value);
}

}  // namespace gcr

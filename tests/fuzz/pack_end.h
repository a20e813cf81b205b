// Ends of packs that a fuzzer cannot find by itself.
#pragma once

#include <openssl/sha.h>

#include <cstddef>
#include <span>

namespace gcr::fuzz {

inline constexpr std::size_t kPackSumAt = 24;

/// Sets the sum in a pack's end to that of the index.
inline void seal(std::span<std::byte> end, std::span<const std::byte> index) {
  SHA256(reinterpret_cast<const unsigned char*>(index.data()), index.size(),
         reinterpret_cast<unsigned char*>(&end[kPackSumAt]));
}

}  // namespace gcr::fuzz

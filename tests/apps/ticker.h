// The layout of the ticker's VRAM, for the program and for the checkers of its output.
#pragma once

#include <cstdint>

namespace gcr::apps {

inline constexpr std::uint64_t kTickerBuffers = 2;
inline constexpr std::uint64_t kTickerBufferWords = std::uint64_t{2} << 17;  // 2 MiB each
inline constexpr std::uint64_t kTickerSlicesPerBuffer = 32;
inline constexpr std::uint64_t kTickerSliceWords = kTickerBufferWords / kTickerSlicesPerBuffer;
inline constexpr std::uint64_t kTickerSlices = kTickerBuffers * kTickerSlicesPerBuffer;

/// The checksum over the ring after `step`: word i of it, whose slice was filled last with some
/// step v, counts v * (2 * i + 1), as gcr_stencil_checksum (kernels.cu) computes it for small
/// numbers.
constexpr std::uint64_t ticker_checksum(std::uint64_t step) {
  std::uint64_t sum = 0;
  for (std::uint64_t slice = 0; slice < kTickerSlices; ++slice) {
    const std::uint64_t behind = (step + kTickerSlices - slice) % kTickerSlices;
    const std::uint64_t filled = behind < step ? step - behind : 0;
    const std::uint64_t first = slice * kTickerSliceWords;
    // The sum of 2 * i + 1 over a slice: a difference of squares.
    const std::uint64_t end = first + kTickerSliceWords;
    sum += filled * (end * end - first * first);
  }
  return sum;
}

}  // namespace gcr::apps

// Copies and fills, synchronous and in streams.
#pragma once

#include <cstdint>

#include "tests/softgpu/engine/process.h"

namespace gcr::softgpu {

/// `height` rows of `width` bytes.
struct Block {
  std::uintptr_t to = 0;
  std::uintptr_t from = 0;
  std::size_t width = 0;
  std::size_t height = 1;
  std::size_t to_pitch = 0;
  std::size_t from_pitch = 0;
};

template <class To, class From>
Block line(To to, From from, std::size_t bytes) {
  return {(std::uintptr_t)to, (std::uintptr_t)from, bytes, 1, bytes, bytes};  // NOLINT
}

/// The requirement for an end of a copy. Unknown host memory is accepted.
enum class Side { kHost, kDevice, kEither };

/// kInvalidValue for memory that the driver may not access.
Result copy_block(Process& process, Stream& stream, const Block& block, Side to, Side from,
                  bool synchronous);

/// Fills `height` rows of `width` elements; T is an unsigned integer of 1, 2 or 4 bytes.
template <class T>
Result fill_rows(Process& process, Stream& stream, std::uintptr_t to, std::size_t pitch, T value,
                 std::size_t width, std::size_t height, bool synchronous);

}  // namespace gcr::softgpu

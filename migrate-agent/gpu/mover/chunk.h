// What the two halves of the mover share: names of buffers, and their chunks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "migrate-agent/gpu/allocations/allocations.h"
#include "migrate-agent/gpu/device/device.h"
#include "src/base/units.h"

namespace gcr::mover {

using gpu::AllocationId;
using gpu::Descriptors;

/// One chunk of a buffer: `offset` is a multiple of kChunkBytes, and only a buffer's last chunk may
/// be shorter than that. The allocation outlives it.
struct ChunkRef {
  const device::Allocation* vram = nullptr;
  AllocationId buffer;
  std::uint64_t offset = 0;
  std::uint32_t length_bytes = 0;

  std::size_t number() const { return offset / kChunkBytes; }
  device::Address address() const { return vram->address() + offset; }
};

constexpr std::size_t chunk_count(std::uint64_t size_bytes) {
  return round_up(size_bytes, kChunkBytes) / kChunkBytes;
}

/// All chunks of `buffers`, in order. Buffers are a map by AllocationId of what has a `vram`.
template <class Buffers>
std::vector<ChunkRef> chunks_of(const Buffers& buffers) {
  std::vector<ChunkRef> chunks;
  for (const auto& [id, buffer] : buffers) {
    const std::uint64_t size = buffer.vram->size_bytes();
    for (std::uint64_t at = 0; at < size; at += kChunkBytes) {
      const auto length = static_cast<std::uint32_t>(std::min(kChunkBytes, size - at));
      chunks.push_back({buffer.vram.get(), id, at, length});
    }
  }
  return chunks;
}

/// Descriptors of the VRAM of `buffers`, for somebody else.
template <class Buffers>
Result<Descriptors> descriptors_of(const Buffers& buffers) {
  Descriptors descriptors;
  for (const auto& [id, buffer] : buffers) {
    GCR_ASSIGN(UniqueFd descriptor, buffer.vram->duplicate_descriptor());
    descriptors.emplace_back(id, std::move(descriptor));
  }
  return descriptors;
}

}  // namespace gcr::mover

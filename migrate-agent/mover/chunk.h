// What the two halves of the mover share: names of buffers, and their chunks.
#pragma once

#include <cstdint>
#include <vector>

#include "migrate-agent/device/device.h"
#include "migrate-agent/job/job.h"
#include "src/base/units.h"

namespace gcr::mover {

using job::AllocationId;
using job::Descriptors;

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

/// Adds all chunks of a buffer to `chunks`, in order.
void append_chunks(std::vector<ChunkRef>& chunks, AllocationId buffer,
                   const device::Allocation& vram);

}  // namespace gcr::mover

#include "migrate-agent/mover/chunk.h"

#include <algorithm>

namespace gcr::mover {

void append_chunks(std::vector<ChunkRef>& chunks, AllocationId buffer,
                   const device::Allocation& vram) {
  for (std::uint64_t at = 0; at < vram.size_bytes(); at += kChunkBytes) {
    const std::uint64_t length = std::min(kChunkBytes, vram.size_bytes() - at);
    chunks.push_back({&vram, buffer, at, static_cast<std::uint32_t>(length)});
  }
}

}  // namespace gcr::mover

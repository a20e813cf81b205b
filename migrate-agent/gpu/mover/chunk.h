// Chunks of buffers, as all parts of the mover name them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "migrate-agent/gpu/allocations/allocations.h"
#include "migrate-agent/gpu/device/device.h"
#include "migrate-agent/gpu/digest/digest.h"
#include "src/base/units.h"

namespace gcr::mover {

using gpu::AllocationId;
using gpu::Descriptors;

/// One chunk of a buffer: `offset` is a multiple of kChunkBytes, and only a buffer's last chunk may
/// be shorter than that.
struct ChunkRef {
  AllocationId buffer;
  std::uint64_t offset = 0;
  std::uint32_t length_bytes = 0;

  std::size_t number() const { return offset / kChunkBytes; }
};

/// One that lies in VRAM. The allocation outlives it.
struct VramChunk : ChunkRef {
  const device::Allocation* vram = nullptr;

  device::Address address() const { return vram->address() + offset; }
};

/// The digest of every chunk, in order, for each buffer.
using VramDigests = std::map<AllocationId, std::vector<digest::Digest>>;

constexpr std::size_t chunk_count(std::uint64_t size_bytes) {
  return round_up(size_bytes, kChunkBytes) / kChunkBytes;
}

/// One of the digests of a buffer as messages have them: 16 bytes for each chunk.
inline digest::Digest digest_at(const std::string& digests, std::size_t chunk) {
  digest::Digest digest;
  std::memcpy(&digest, digests.data() + chunk * sizeof(digest), sizeof(digest));
  return digest;
}

/// All chunks of one buffer, in order.
inline std::vector<ChunkRef> chunks_of(AllocationId buffer, std::uint64_t size_bytes) {
  std::vector<ChunkRef> chunks;
  for (std::uint64_t at = 0; at < size_bytes; at += kChunkBytes) {
    chunks.push_back(
        {buffer, at, static_cast<std::uint32_t>(std::min(kChunkBytes, size_bytes - at))});
  }
  return chunks;
}

/// All chunks of `buffers`, in order: a map by AllocationId of what has `size_bytes`.
template <class Buffers>
std::vector<ChunkRef> chunks_by_size(const Buffers& buffers) {
  std::vector<ChunkRef> chunks;
  for (const auto& [id, buffer] : buffers) {
    for (const ChunkRef& chunk : chunks_of(id, buffer.size_bytes)) chunks.push_back(chunk);
  }
  return chunks;
}

/// The same in VRAM: a map by AllocationId of what has a `vram`.
template <class Buffers>
std::vector<VramChunk> chunks_of(const Buffers& buffers) {
  std::vector<VramChunk> chunks;
  for (const auto& [id, buffer] : buffers) {
    for (const ChunkRef& chunk : chunks_of(id, buffer.vram->size_bytes())) {
      chunks.push_back({chunk, buffer.vram.get()});
    }
  }
  return chunks;
}

/// Descriptors of the VRAM of `buffers`, owned by the caller.
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

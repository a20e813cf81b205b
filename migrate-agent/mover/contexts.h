// What the two halves of the mover share: contexts by GPU, and names of buffers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "migrate-agent/mover/vram.h"
#include "src/base/units.h"

namespace gcr::mover {

using BufferId = std::uint64_t;
using Descriptors = std::vector<std::pair<BufferId, UniqueFd>>;

/// The contexts of one mover, made when a GPU is first used. One thread at a time.
class Contexts {
 public:
  explicit Contexts(std::shared_ptr<const CudaDriver> driver) : driver_(std::move(driver)) {}
  /// kNotFound if this machine has no such GPU.
  Result<std::shared_ptr<GpuContext>> on(const Uuid& gpu);
  const CudaDriver& driver() const { return *driver_; }
  const std::shared_ptr<const CudaDriver>& shared_driver() const { return driver_; }

 private:
  std::shared_ptr<const CudaDriver> driver_;
  std::map<Uuid, std::shared_ptr<GpuContext>> contexts_;
};

/// One chunk of a buffer: `offset` is a multiple of kChunkBytes, and only a buffer's last chunk may
/// be shorter than that. The Vram outlives it.
struct ChunkRef {
  const Vram* vram = nullptr;
  BufferId buffer = 0;
  std::uint64_t offset = 0;
  std::uint32_t length_bytes = 0;

  std::size_t number() const { return offset / kChunkBytes; }
  CUdeviceptr address() const { return vram->address() + offset; }
};

constexpr std::size_t chunk_count(std::uint64_t size_bytes) {
  return round_up(size_bytes, kChunkBytes) / kChunkBytes;
}

/// Adds all chunks of a buffer to `chunks`, in order.
void append_chunks(std::vector<ChunkRef>& chunks, BufferId buffer, const Vram& vram);

}  // namespace gcr::mover

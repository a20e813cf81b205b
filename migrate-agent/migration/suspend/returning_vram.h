// The VRAM of a suspended job on its way back: made anew, filled from the keeper's copy and
// verified. Methods block; one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "migrate-agent/gpu/allocations/allocations.h"
#include "migrate-agent/gpu/device/device.h"
#include "migrate-agent/gpu/host_copy/kept_vram.h"
#include "migrate-agent/gpu/keeper/keeper.h"
#include "migrate-agent/gpu/mover/gpu_map.h"

namespace gcr::migration {

class ReturningVram {
 public:
  explicit ReturningVram(gpu::KeptVram copy) : copy_(std::move(copy)) {}

  /// NVIDIA's GPUs of the host where it was suspended.
  std::vector<mover::MappableGpu> origins() const;

  /// Bytes of VRAM by GPU, as they were.
  std::map<Uuid, std::uint64_t> needs() const;
  std::uint64_t total_bytes() const { return copy_.total_bytes(); }
  std::size_t count() const { return static_cast<std::size_t>(copy_.description().buffers_size()); }

  /// Makes VRAM for all buffers, where `gpus` says (else where they were). kResourceExhausted says
  /// how much is free.
  Status create(const std::shared_ptr<const device::Driver>& driver,
                const std::vector<device::GpuPair>& gpus);

  /// Copies everything into it.
  Status fill();

  /// Compares the digest of every chunk with what was in VRAM. kDataLoss names the first buffer
  /// that differs.
  Status verify();

  /// Hands it over to a keeper that is not armed yet.
  Status hand_over(keeper::Keeper& keeper) const;

 private:
  struct Buffer {
    std::unique_ptr<device::Allocation> vram;
    const gpu::KeptBuffer* kept = nullptr;
  };

  gpu::KeptVram copy_;
  std::map<gpu::AllocationId, Buffer> buffers_;
};

}  // namespace gcr::migration

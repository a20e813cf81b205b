// Digests chunks in VRAM, on all GPUs that hold them (design decision 2).
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "migrate-agent/gpu/digest/digest.h"
#include "migrate-agent/gpu/mover/chunk.h"

namespace gcr::mover {

/// The digesters of one key, one per GPU, and the memory they report through. One thread at a time,
/// except on().
class VramDigester {
 public:
  explicit VramDigester(const digest::DigestKey& key) : key_(key) {}

  /// Allocates what `chunks` chunks on that GPU need now instead of in digest().
  Status prepare(const std::shared_ptr<device::Gpu>& on, std::size_t chunks);

  /// The digests of `chunks`, in their order. All GPUs work at the same time. A chunk that is
  /// written meanwhile gives a meaningless digest, with no other effect.
  Result<std::vector<digest::Digest>> digest(std::span<const VramChunk> chunks);

  /// The digester of a GPU that was prepared. Thread-safe, except during prepare().
  const device::Digester& on(const device::Gpu& gpu) const { return *gpus_.at(&gpu).digester; }

  const digest::DigestKey& key() const { return key_; }

 private:
  struct Place {
    std::shared_ptr<device::Gpu> gpu;
    std::unique_ptr<device::Digester> digester;
    std::unique_ptr<device::Stream> stream;
    std::unique_ptr<device::HostMemory>
        memory;  // descriptors of `capacity` chunks, then their digests
    std::size_t capacity = 0;
    std::vector<std::size_t> indices;  // of the chunks on this GPU, in one digest()
  };
  Status launch(Place& place, std::span<const VramChunk> chunks);

  digest::DigestKey key_;
  std::map<const device::Gpu*, Place> gpus_;
};

}  // namespace gcr::mover

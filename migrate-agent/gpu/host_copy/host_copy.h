// The VRAM of a suspended job in host memory: files without a name, of hugepages where there are
// any. A keeper holds their descriptors, and with them the memory; its first descriptor is a sealed
// file that describes the copy (description.proto). A suspend makes a HostCopy, fills it and hands
// it over. A resume, or a migration of the suspended job, opens it again.
//
// Methods block; one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "migrate-agent/gpu/allocations/allocations.h"
#include "migrate-agent/gpu/device/device.h"
#include "migrate-agent/gpu/host_copy/description.pb.h"
#include "migrate-agent/gpu/keeper/keeper.h"
#include "migrate-agent/gpu/mover/gpu_map.h"
#include "migrate-agent/gpu/mover/outgoing_vram.h"
#include "migrate-agent/linux/hostmem/landing_region.h"

namespace gcr::gpu {

class HostCopy {
 public:
  /// An empty copy, for make_room().
  HostCopy(std::shared_ptr<const device::Driver> driver, hostmem::HugepagePolicy policy)
      : gpus_(std::move(driver)), policy_(policy) {}

  /// Opens what a keeper holds. kNotFound: there is no such keeper. kDataLoss: it holds no copy.
  static Result<HostCopy> open(const journal::ProcessId& keeper);

  // Before hand_over().

  /// How much memory make_room() would take.
  std::uint64_t missing_bytes(const Job& job) const;

  /// Makes room for all VRAM of the job that has none yet: memory that is populated and
  /// page-locked. kResourceExhausted says how much memory there is.
  Status make_room(const Job& job);

  /// Copies all VRAM of the job, which has room.
  Status fill(const Job& job, const mover::OutgoingVram& vram) const;

  /// Hands the copy over to a keeper that is not armed yet. `description` has the key of `digests`;
  /// the job's buffers are added here.
  Status hand_over(const Job& job, const mover::VramDigests& digests, KeptCopy description,
                   keeper::Keeper& keeper) const;

  bool is_huge() const;
  /// Why it is not made of hugepages; empty if it is.
  std::string note() const;

  // After open().

  const KeptCopy& description() const { return description_; }
  std::uint64_t total_bytes() const;
  std::size_t count() const { return places_.size(); }

  /// The NVIDIA GPUs of the host where the job was suspended.
  std::vector<mover::MappableGpu> origins() const;

  /// How many bytes of VRAM the job had on each GPU.
  std::map<Uuid, std::uint64_t> bytes_by_gpu() const;

  /// Hands every chunk with its digest under `key` to `sink`, as a mover::ChunkSource. kDataLoss
  /// names a chunk that is not what was in VRAM.
  Status read(const digest::DigestKey& key, unsigned threads, const mover::ChunkSink& sink) const;

  struct Buffer {
    std::unique_ptr<device::Allocation> vram;
  };
  using Vram = std::map<AllocationId, Buffer>;

  /// VRAM for all buffers, on the GPUs that `gpus` names instead of those where they were; a GPU
  /// without a pair stays. kResourceExhausted says how much is free.
  Result<Vram> create_vram(const std::shared_ptr<const device::Driver>& driver,
                           const std::vector<device::GpuPair>& gpus) const;

  /// Copies everything into `vram`, of create_vram().
  Status copy_to(const Vram& vram) const;

  /// Compares the digest of every chunk of `vram` with what was in VRAM at the suspend. kDataLoss
  /// names the first that differs.
  Status verify(const Vram& vram) const;

  /// Hands the descriptors of `vram` over to a keeper that is not armed yet, for all members that
  /// map them.
  Status hand_over_vram(const Vram& vram, keeper::Keeper& keeper) const;

 private:
  /// Where a buffer lies.
  struct Place {
    std::size_t part;
    std::uint64_t offset;
    std::uint64_t size_bytes;
  };
  struct Part {
    hostmem::LandingRegion region;
    std::vector<std::unique_ptr<device::HostMemory>> locked{};  ///< its pieces, before hand_over()
  };

  Status read_description();
  std::span<std::byte> content(AllocationId id) const;
  digest::DigestKey key() const;
  Status check(const mover::ChunkRef& chunk, const digest::Digest& now) const;

  device::Gpus gpus_;
  hostmem::HugepagePolicy policy_;
  std::vector<Part> parts_;
  std::map<AllocationId, Place> places_;
  KeptCopy description_;        ///< after open(), and
  mover::VramDigests digests_;  ///< of what was in VRAM
};

/// Hands a copy in `parts` over to a keeper that is not armed yet: first the description, to which
/// their sizes are added, then their files. Buffers refer to `parts` by place.
Status hand_over(KeptCopy description, std::span<const hostmem::LandingRegion* const> parts,
                 keeper::Keeper& keeper);

}  // namespace gcr::gpu

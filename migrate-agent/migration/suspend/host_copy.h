// The VRAM of a job on its way into host memory: files without a name, of hugepages where there are
// any. Whoever has their descriptors keeps the memory. Methods block; one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "migrate-agent/gpu/allocations/allocations.h"
#include "migrate-agent/gpu/device/device.h"
#include "migrate-agent/gpu/host_copy/kept_copy.pb.h"
#include "migrate-agent/gpu/keeper/keeper.h"
#include "migrate-agent/gpu/mover/outgoing_vram.h"
#include "migrate-agent/linux/hostmem/landing_region.h"

namespace gcr::migration {

class HostCopy {
 public:
  using Secret = std::array<std::byte, 32>;
  using Digests = std::map<gpu::AllocationId, std::vector<digest::Digest>>;

  HostCopy(std::shared_ptr<const device::Driver> driver, hostmem::HugepagePolicy policy)
      : gpus_(std::move(driver)), policy_(policy) {}

  /// How much memory make_room() would take.
  std::uint64_t missing_bytes(const gpu::Job& job) const;

  /// Makes room for all VRAM of the job that has none yet: memory that is populated and
  /// page-locked. kResourceExhausted says how much memory there is.
  Status make_room(const gpu::Job& job);

  /// Copies all VRAM of the job, which has room.
  Status fill(const gpu::Job& job, const mover::OutgoingVram& vram) const;

  /// Hands the copy over to a keeper, which is not armed yet: first the description, which has the
  /// members by now and gets the digests and the secret of their key, then the files.
  Status hand_over(const gpu::Job& job, const Digests& digests, const Secret& secret,
                   gpu::KeptCopy description, keeper::Keeper& keeper) const;

  bool is_huge() const;
  /// Why it is not made of hugepages; empty if it is.
  std::string note() const;

 private:
  struct Place {
    std::size_t part;
    std::uint64_t offset;
  };
  /// Page-locked in pieces.
  struct Part {
    hostmem::LandingRegion region;
    std::vector<std::unique_ptr<device::HostMemory>> locked;
  };

  device::Gpus gpus_;
  hostmem::HugepagePolicy policy_;
  std::vector<Part> parts_;
  std::map<gpu::AllocationId, Place> places_;
};

}  // namespace gcr::migration

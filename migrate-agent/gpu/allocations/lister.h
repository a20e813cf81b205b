// What the members of a job have allocated.
#pragma once

#include <functional>
#include <map>

#include "migrate-agent/gpu/allocations/allocations.h"
#include "migrate-agent/gpu/allocations/same_memory.h"

namespace gcr::gpu {

/// Lists what members have allocated, and finds out which of it is the same memory. One thread at a
/// time.
class Lister {
 public:
  /// Which allocations a descriptor is wanted of.
  using Wanted = std::function<bool(const LocalAllocation&)>;

  struct Listing {
    Listed listed;
    std::vector<gpu::ExportedAllocation> taken;
  };

  /// All that the member has now. Errors are those of the access.
  Result<Listing> list(MemberId member, gpu::GpuAccess& access, const Wanted& wanted);

  /// What members share, and others may have.
  const SameMemory& shared() const { return shared_; }

 private:
  SameMemory shared_;
  std::map<Mapping, std::uint64_t> numbers_;
};

}  // namespace gcr::gpu

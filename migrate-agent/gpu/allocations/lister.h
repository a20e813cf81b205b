// Lists what the members of a job have allocated.
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
  /// Whether the caller wants a descriptor of an allocation.
  using Wanted = std::function<bool(const LocalAllocation&)>;

  struct Listing {
    Listed listed;
    std::vector<gpu::ExportedAllocation> taken;
  };

  /// All that the member has now. Errors are those of the access.
  Result<Listing> list(MemberId member, gpu::GpuAccess& access, const Wanted& wanted);

  /// The memory that members share, to look for other processes that have it open.
  const SameMemory& shared() const { return shared_; }

 private:
  SameMemory shared_;
  std::map<Mapping, std::uint64_t> numbers_;
};

}  // namespace gcr::gpu

// Lists what the members of a job have allocated, and finds descriptors of the same memory.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "migrate-agent/gpu/allocations/allocations.h"

namespace gcr::gpu {

/// Numbers memory by its descriptors. Processes that share memory have duplicates of one
/// descriptor, which the kernel can compare (kcmp(2)). Two descriptors that the driver exported one
/// after the other are no duplicates, even of the same memory. One thread at a time.
class SameMemory {
 public:
  /// The number of the memory behind `descriptor`, from 1. Keeps a duplicate of one that is new.
  Result<std::uint64_t> number(int descriptor);

  /// The number of what another process has open; none if it has no number, or is gone.
  std::optional<std::uint64_t> find(pid_t pid, int descriptor) const;

  /// One of the descriptors, or -1.
  int any() const { return known_.empty() ? -1 : known_.front().first.get(); }

 private:
  using Known = std::vector<std::pair<UniqueFd, std::uint64_t>>;
  Known::const_iterator place(pid_t pid, int descriptor) const;

  Known known_;  ///< in the kernel's order of open files
};

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

// Finds descriptors of the same memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

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

}  // namespace gcr::gpu

// The size of this process's table of descriptors.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstddef>

#include "src/base/unique_fd.h"

namespace gcr {

/// Enlarges the kernel's descriptor table to `count` descriptors, or to RLIMIT_NOFILE if that is
/// less. Call it while the process has one thread: later the kernel enlarges the table only after
/// an RCU grace period (expand_fdtable, synchronize_rcu), which delays the open or dup that needs
/// the space by 10 to 30 ms. Costs 8 bytes per descriptor; children do not inherit the size. `open`
/// is any open descriptor.
inline void make_room_for_descriptors(int open, std::size_t count) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto fitting = std::min<rlim_t>(count, limit.rlim_cur);
  const UniqueFd last(::fcntl(open, F_DUPFD_CLOEXEC, static_cast<int>(fitting) - 1));
}

}  // namespace gcr

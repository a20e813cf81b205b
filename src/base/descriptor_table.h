// The size of this process's table of descriptors.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstddef>

#include "src/base/unique_fd.h"

namespace gcr {

/// Makes the kernel's table large enough for `count` descriptors, or for as many as RLIMIT_NOFILE
/// allows. To call while the process has one thread: later the kernel makes the table larger only
/// after all processors have passed a quiet state (expand_fdtable, synchronize_rcu), for which
/// whoever opens or duplicates one more descriptor waits 10 to 30 ms. It takes 8 bytes for each,
/// and children do not inherit the size. `open` is any open descriptor.
inline void make_room_for_descriptors(int open, std::size_t count) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto fitting = std::min<rlim_t>(count, limit.rlim_cur);
  const UniqueFd last(::fcntl(open, F_DUPFD_CLOEXEC, static_cast<int>(fitting) - 1));
}

}  // namespace gcr

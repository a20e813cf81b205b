// Gives pages of zeros in shared memory back to the kernel before CRIU dumps it, which it does with
// one thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace gcr::process {

/// In shared anonymous memory (MAP_SHARED | MAP_ANONYMOUS) that one of `pids` maps. It reads the
/// same afterwards. Whoever maps it must stand still, and no device may use it: after the control
/// checkpoint none does. What cannot be read, or is too small to matter, stays as it is. Gives the
/// number of bytes. Needs CAP_SYS_ADMIN; blocks.
std::uint64_t drop_shared_zeros(const std::vector<pid_t>& pids);

}  // namespace gcr::process

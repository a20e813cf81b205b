// Finding the door of a process in its descriptor table.
#pragma once

#include <sys/types.h>

#include <chrono>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::gpu {

struct FoundDoor {
  UniqueFd process;  ///< pidfd
  UniqueFd card;     ///< the memfd, locked against other agents as long as it is open
  UniqueFd socket;   ///< the agent's end
};

/// Errors as Door::open documents them. Waits as long as `patience` for another agent to leave.
Result<FoundDoor> find_door(pid_t pid, std::chrono::milliseconds patience);

/// Whether the process has a door: it runs under the preload library and has initialised CUDA or
/// HIP. Looks into its descriptor table alone, and keeps nobody from the door.
bool has_door(pid_t pid);

}  // namespace gcr::gpu

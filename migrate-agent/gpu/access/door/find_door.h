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

/// Errors as Door::open documents them. Waits up to `patience` for another agent to release the
/// door.
Result<FoundDoor> find_door(pid_t pid, std::chrono::milliseconds patience);

/// Whether the process has a door: it runs under the preload library and has initialised CUDA or
/// HIP. Only reads its descriptor table, and does not lock the door.
bool has_door(pid_t pid);

}  // namespace gcr::gpu

// Finding the door of a process in its descriptor table.
#pragma once

#include <sys/types.h>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::agent {

struct FoundDoor {
  UniqueFd process;  ///< pidfd
  UniqueFd card;     ///< the memfd, locked against other agents as long as it is open
  UniqueFd socket;   ///< the agent's end
};

/// Errors as Door::open documents them.
Result<FoundDoor> find_door(pid_t pid);

}  // namespace gcr::agent

// A process may ask for a signal at its parent's death (PR_SET_PDEATHSIG). CRIU restores that
// before it ends, and it is the parent of the first process of what it restores.
#pragma once

#include <sys/types.h>

#include "migrate-agent/criu/core_images.h"
#include "src/base/result.h"

namespace gcr::criu {

/// In the images of the stopped process `pid`, no thread has asked for such a signal. What the
/// threads had is one of their settings (settings.h).
Status forget_parent_death_signal(pid_t pid, const ReadImage& read, const WriteImage& write);

}  // namespace gcr::criu

// The threads of a tree that was just dumped, and their images, which are still with the agent.
//
// CRIU reads a thread's rights inside the process, by code and in memory that the process and
// others of its user can change: before an image is sent it is compared with what the kernel says.
#pragma once

#include <sys/types.h>

#include <vector>

#include "migrate-agent/criu/images/images.h"
#include "migrate-agent/process/inspect/credentials.h"
#include "src/base/result.h"

namespace gcr::criu {

/// For each thread of the stopped tree under `root`, side by side:
/// - its rights, which are returned, are the same by the kernel and in its image; kDataLoss with
///   thread, field and both values if they are not,
/// - calls that CRIU has interrupted are made again (interrupted_calls.h),
/// - in the images of `root` no thread asks for a signal at its parent's death (PR_SET_PDEATHSIG),
///   which is one of its settings (settings.h): CRIU, its parent, ends when it is restored.
///
/// The kernel does not tell securebits: an image in which they are not 0 is refused. A thread that
/// forges a 0 loses restrictions that its parents had set, and gains no id and no capability.
Result<std::vector<process::ThreadRights>> settle_threads(pid_t root, const images::ReadImage& read,
                                                          const images::WriteImage& write);

}  // namespace gcr::criu

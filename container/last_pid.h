// Room for a job's PIDs. A restored job needs the PIDs that it had, which health checks and exec
// sessions in the waiting container could take. They are low, or those that it was given in another
// container. So these processes get high PIDs, at a random place.
#pragma once

#include <sys/types.h>

#include <filesystem>

#include "src/base/result.h"

namespace gcr::container {

/// Reads the PID that a runtime wrote to --pid-file.
Result<pid_t> read_pid_file(const std::filesystem::path& path);

/// Makes the next PIDs of a PID namespace higher than half of its limit (kernel.pid_max), at a
/// random place up to seven eighths of it. `init` is
/// the namespace's first process. kRefused if it is not, or if the namespace is our own.
Status raise_last_pid(pid_t init);

}  // namespace gcr::container

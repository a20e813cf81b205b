// Starts worker processes: this program again, with a new address space, in its own session, with
// two descriptors: the connection and the socket to the daemon.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::daemon {

/// The descriptor numbers that a worker finds open.
inline constexpr int kWorkerConnectionFd = 3;
inline constexpr int kWorkerDaemonFd = 4;

struct WorkerProcess {
  pid_t pid = -1;
  UniqueFd socket;  ///< the daemon's end of the SOCK_SEQPACKET pair
};

/// Returns the command that started this program, without its own arguments: its name, or a dynamic
/// loader with options and then its name. `own_arguments` is argc - 1.
Result<std::vector<std::string>> self_command(int own_arguments);

/// Runs `/proc/self/exe` with the command line `command`. Besides the standard descriptors it
/// inherits only the connection and the socket to the daemon, or only the latter if there is no
/// `connection`. The caller reaps the process. On failure no process runs and `connection` is
/// closed.
Result<WorkerProcess> spawn_worker(const std::vector<std::string>& command, UniqueFd connection);

}  // namespace gcr::daemon

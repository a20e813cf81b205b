// The daemon accepts connections, reads only the preface of each, and passes it on: a control
// connection to a new worker process, a data connection to the worker that registered its
// migration. It does no TLS. A crash ends only one worker; the daemon logs how each of them ended.
// Work that a worker leaves unfinished goes to a recovery worker (recoveries.h), when the worker
// has ended or when a daemon starts.
#pragma once

#include <asio/io_context.hpp>
#include <string>
#include <vector>

#include "migrate-agent/worker/config/config.h"
#include "src/base/result.h"

namespace gcr::daemon {

/// Binds and listens, and starts the recovery of unfinished migrations; then the caller runs `io`,
/// which owns the daemon. The process has no other threads. `worker_command` is the command line
/// that starts this program again, as a worker. Returns "address:port" as bound. Makes this process
/// the reaper of orphaned descendants: the init processes of migrated processes.
///
/// On SIGHUP the daemon checks the configuration file and the certificates again, and logs
/// problems.
///
/// After the first SIGTERM or SIGINT it accepts no more control connections and starts no more
/// recoveries; data connections still reach their workers, and the daemon ends with its last worker
/// or recovery. The second signal ends it at once; the workers continue without it.
Result<std::string> start_daemon(asio::io_context& io, worker::Config config,
                                 std::vector<std::string> worker_command);

}  // namespace gcr::daemon

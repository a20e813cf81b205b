// A worker process: one connection, one migration. It makes the TLS handshake, checks the
// peer's certificate, and runs the role for the first request, or answers a question. Without a
// connection it recovers a migration.
#pragma once

#include <string>

#include "migrate-agent/worker/config/config.h"
#include "src/base/unique_fd.h"

namespace gcr::daemon {

/// Serves `connection` to the end and returns the process's exit status: 0 once a role has run,
/// 1 if the peer was refused or lost before. Call from main, before any thread exists.
int run_worker(const worker::Config& config, UniqueFd connection, UniqueFd daemon);

/// Recovers the migration whose journal has this name ("<uuid>-source") and removes what is left of
/// it on this host. Exit status: 0 if nothing is left to do, 1 if it has to be tried again. Call
/// from main, before any thread exists.
int run_recovery_worker(const worker::Config& config, UniqueFd daemon, const std::string& name);

/// Sends the daemon one Readiness, then gives the exit status. Call from main.
int run_probe(const worker::Config& config, UniqueFd daemon);

}  // namespace gcr::daemon

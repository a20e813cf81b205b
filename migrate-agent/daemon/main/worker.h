// A worker process: one connection, one migration. It does the TLS handshake, checks the peer's
// certificate, and runs the role for the first request or answers a query. Without a connection it
// recovers a migration.
#pragma once

#include <string>

#include "migrate-agent/worker/config/config.h"
#include "src/base/unique_fd.h"

namespace gcr::daemon {

/// Serves `connection` to the end. Returns the process's exit status: 0 if a role has run, 1 if the
/// peer was refused or lost before. Call it from main, before any thread exists.
int run_worker(const worker::Config& config, UniqueFd connection, UniqueFd daemon);

/// Recovers the migration whose journal has this name ("<uuid>-source") and removes its remains on
/// this host. Exit status: 0 if no work is left, 1 if recovery must be tried again. Call it from
/// main, before any thread exists.
int run_recovery_worker(const worker::Config& config, UniqueFd daemon, const std::string& name);

/// Checks this host, sends the daemon one Readiness and returns the exit status. Call it from main.
int run_probe(const worker::Config& config, UniqueFd daemon);

}  // namespace gcr::daemon

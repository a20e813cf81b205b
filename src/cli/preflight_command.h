// `gcr-migrate preflight SRC DST PID`: what prevents a migration.
#pragma once

#include <string>

#include "proto/control.pb.h"
#include "src/cli/options.h"

namespace gcr::cli {

/// Asks the agent at SRC, which asks the one at DST, and prints the answer. The process's exit
/// status: 0 if nothing prevents the migration, 3 if something does, else as for other queries.
int preflight_command(const PreflightOptions& options);

/// A block of lines for each finding, and "ready" or "refused: N blockers".
std::string preflight_text(const proto::CheckReply& reply);

/// One object on one line; docs/preflight.md documents it.
std::string preflight_json(const proto::CheckReply& reply);

/// Whether none of the findings is a blocker.
bool is_ready(const proto::CheckReply& reply);

}  // namespace gcr::cli

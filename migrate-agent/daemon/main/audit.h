// One line for every migration that ends here: who moved what, from where, to where, and the
// outcome. The worker that ends it writes the line, so no daemon is needed; if the worker dies at
// that moment, recovery may write the line a second time.
#pragma once

#include <chrono>
#include <string>

#include "migrate-agent/worker/config/config.h"
#include "proto/registry.pb.h"
#include "src/base/result.h"

namespace gcr::daemon {

/// Fields as key="value", in this order and separated by blanks: time, host, role, migration,
/// ordered_by, uid, user, pid, command, from, to, outcome, recovered, sent_bytes, downtime_ms,
/// reason. Within a value everything but printable ASCII, '"' and '\' is written as \xNN, so that
/// no name or command can look like another field or line. Figures that only a whole course has are
/// empty after a recovery. No line end.
std::string audit_line(const registry::Outcome& outcome, const std::string& host,
                       std::chrono::system_clock::time_point when);

/// Writes the line where the configuration says, unless the migration has not ended yet: then its
/// recovery will. If the file cannot be written the log has the line, and why. Blocks.
void audit(const worker::Config& config, const registry::Outcome& outcome);

}  // namespace gcr::daemon

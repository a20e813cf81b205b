// One line for every migration that ends here: who moved what, from where, to where, and what came
// of it. Written by the worker that ends it, so that it needs no daemon; a worker that dies in that
// moment is followed by a recovery, which may write the line a second time.
#pragma once

#include <chrono>
#include <string>

#include "migrate-agent/config/config.h"
#include "proto/registry.pb.h"
#include "src/base/result.h"

namespace gcr::agent {

/// Fields as key="value", in this order and separated by blanks: time, host, role, migration,
/// ordered_by, uid, user, pid, command, from, to, outcome, recovered, sent_bytes, downtime_ms,
/// reason. Within a value everything but printable ASCII, '"' and '\' stands as \xNN, so that
/// nobody's name or command can look like another field or line. Figures that only a whole course
/// has are empty after a recovery. No line end.
std::string audit_line(const registry::Outcome& outcome, const std::string& host,
                       std::chrono::system_clock::time_point when);

/// Writes the line where the configuration wants it, unless the migration has not ended yet: then
/// its recovery will. If the file cannot be written the log has the line, and why. Blocks.
void audit(const Config& config, const registry::Outcome& outcome);

}  // namespace gcr::agent

// The audit log: one line for every migration that ends here, with who moved which process from
// where to where, and the outcome. The worker that ends the migration writes the line, so no daemon
// is needed; if the worker dies at that moment, recovery may write the line a second time.
#pragma once

#include <chrono>
#include <string>

#include "migrate-agent/worker/config/config.h"
#include "proto/registry.pb.h"
#include "src/base/result.h"

namespace gcr::daemon {

/// Formats the line: fields as key="value", in this order, separated by blanks: time, host, role,
/// migration, ordered_by, uid, user, pid, processes, command, from, to, outcome, recovered,
/// sent_bytes, downtime_ms, reason. Within a value all characters other than printable ASCII, and
/// '"' and '\', are written as \xNN, so that no name or command can look like another field or
/// line. Figures that a recovery does not know are empty after one. There is no line end.
std::string audit_line(const registry::Outcome& outcome, const std::string& host,
                       std::chrono::system_clock::time_point when);

/// Writes the line to the configured destination, unless the migration has not ended yet: then its
/// recovery writes it. If the file cannot be written, the log gets the line and the reason. Blocks.
void audit(const worker::Config& config, const registry::Outcome& outcome);

}  // namespace gcr::daemon

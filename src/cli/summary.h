// The report of a migration, a checkpoint or a restore, as text.
#pragma once

#include <string>

#include "src/cli/order.h"

namespace gcr::cli {

/// Returns the result, the phases, the rounds and the reason for the switchover; omits fields that
/// the report lacks, and all figures if it was lost. Ends with last_line(), and consists only of it
/// unless the order succeeded.
std::string summary(const Order& order, const Outcome& outcome);

/// Returns the last line on standard output, for scripts, as `gcr-migrate --help` describes it:
/// "migrated pid=<n> vram_bytes=…", "checkpointed name=<name> …", "restored pid=<n> …". If the
/// report was lost, it has only the PID or the name, or "unknown"; if the order was detached, it is
/// "migration <id>" or the like. Empty if the order failed.
std::string last_line(Task task, const Outcome& outcome);

}  // namespace gcr::cli

// The report of a migration, a checkpoint or a restore, for people.
#pragma once

#include <string>

#include "src/cli/order.h"

namespace gcr::cli {

/// What was done, where the time went, the rounds, and the reason for the switchover; fields that
/// the report lacks are left out, and all figures if it was lost. It ends with last_line(), and has
/// nothing else unless the order succeeded.
std::string summary(const Order& order, const Outcome& outcome);

/// The last line on standard output, for scripts, as `gcr-migrate --help` has it: "migrated pid=<n>
/// vram_bytes=…", "checkpointed name=<name> …", "restored pid=<n> …". If the report was lost, only
/// the PID or the name, or "unknown"; "migration <id>" and the like if it was detached. Empty if it
/// did not succeed.
std::string last_line(Task task, const Outcome& outcome);

}  // namespace gcr::cli

// The report of a migration, for people.
#pragma once

#include <string>

#include "src/cli/migrate_options.h"

namespace gcr::cli {

/// What moved, where the time went on both sides, the rounds, and the reason for the switchover;
/// fields that the report lacks are left out, and all figures if it was lost. It ends with
/// last_line(), and has nothing else unless the migration succeeded.
std::string summary(const MigrateOptions& options, const Outcome& outcome);

/// The last line on standard output, for scripts: "migrated pid=<n> vram_bytes=..."; "migrated
/// pid=<n>" if the report was lost, or "migrated pid=unknown" if the destination could not be
/// asked; "migration <id>" if it was detached. Empty if it did not succeed.
std::string last_line(const Outcome& outcome);

}  // namespace gcr::cli

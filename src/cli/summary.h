// The report of a migration, for people.
#pragma once

#include <string>

#include "proto/control.pb.h"
#include "src/cli/options.h"
#include "src/cli/outcome.h"

namespace gcr::cli {

/// What moved, where the time went on both sides, the rounds, and the reason for the switchover;
/// fields that the report lacks are left out. It ends with last_line(). Only for migrations
/// that succeeded.
std::string summary(const MigrateOptions& options, const proto::MigrateReport& report);

/// The same if the report was lost and the success is known from journals: no figures.
std::string short_summary(const MigrateOptions& options, const proto::MigrateReport& report);

/// The last line on standard output, for scripts: "migrated pid=<n> vram_bytes=..."; "migrated
/// pid=<n>" if the report was lost, or "migrated pid=unknown" if the destination could not be
/// asked; "migration <id>" if it was detached. Empty if it did not succeed.
std::string last_line(const Outcome& outcome);

}  // namespace gcr::cli

// The report of a migration, for people.
#pragma once

#include <string>

#include "proto/control.pb.h"
#include "src/cli/options.h"
#include "src/cli/outcome.h"

namespace gcr::cli {

/// What moved, where the time went on both sides, the rounds, and why the switchover came when it
/// did; what the report does not say is left out. It ends with last_line(). Only for migrations
/// that succeeded.
std::string summary(const MigrateOptions& options, const proto::MigrateReport& report);

/// The same where the report was lost and journals tell of the success: no figures.
std::string short_summary(const MigrateOptions& options, const proto::MigrateReport& report);

/// The last line on standard output, for scripts: "migrated pid=<n> vram_bytes=..."; "migrated
/// pid=<n>" where the report was lost, or "migrated pid=unknown" where the destination could not be
/// asked; "migration <id>" if it goes on without us. Empty if it did not succeed.
std::string last_line(const Outcome& outcome);

}  // namespace gcr::cli

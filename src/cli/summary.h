// The report of a migration, for people.
#pragma once

#include <string>

#include "proto/control.pb.h"
#include "src/cli/options.h"

namespace gcr::cli {

/// What moved, where the time went on both sides, the rounds, and why the switchover came when it
/// did; what the report does not say is left out. The last line, for scripts, is "migrated
/// pid=...". Only for migrations that succeeded.
std::string summary(const MigrateOptions& options, const proto::MigrateReport& report);

/// The same where the report was lost and journals tell of the success: no figures. The last line
/// is "migrated pid=<n>", or "migrated pid=unknown" where the destination could not be asked.
std::string short_summary(const MigrateOptions& options, const proto::MigrateReport& report);

}  // namespace gcr::cli

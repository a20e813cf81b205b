// `gcr-migrate SRC DST PID`: asks the source's agent for a migration and shows how it goes.
#pragma once

#include "src/cli/options.h"

namespace gcr::cli {

/// Runs to the migration's end and returns the exit status (exit_code.h). Progress and the summary
/// go to standard output, an error to standard error as one line; with `json` standard output has
/// the report alone.
int migrate_command(const MigrateOptions& options);

}  // namespace gcr::cli

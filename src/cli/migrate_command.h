// `gcr-migrate SRC DST PID`: asks the source's agent for a migration and shows how it goes.
#pragma once

#include "src/cli/options.h"

namespace gcr::cli {

/// Runs to the migration's end and returns the exit status (exit_code.h). What happens and the
/// summary go to standard output (migration_view.h), an error to standard error as one line.
int migrate_command(const MigrateOptions& options);

}  // namespace gcr::cli

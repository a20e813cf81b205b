// `gcr-migrate cancel`, `continue`, `set`, `status`, `list`, `host` and `resolve`: what an operator
// asks an agent, or orders a migration that is there already.
#pragma once

#include "src/cli/options.h"

namespace gcr::cli {

/// Asks and prints the answer, as text or as one JSON object; an error goes to standard error as
/// one line. The exit status (exit_code.h): kMigrated once it was answered or done.
int ask_command(const AskOptions& options);

}  // namespace gcr::cli

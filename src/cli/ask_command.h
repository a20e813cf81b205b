// `gcr-migrate cancel`, `continue`, `set`, `status`, `list`, `host` and `resolve`: an
// operator's queries to an agent, and orders to a migration that exists.
#pragma once

#include "src/cli/options.h"

namespace gcr::cli {

/// Asks and prints the answer, as text or as one JSON object; an error goes to standard error as
/// one line. The exit status (exit_code.h): kMigrated if it was answered or done.
int ask_command(const AskOptions& options);

}  // namespace gcr::cli

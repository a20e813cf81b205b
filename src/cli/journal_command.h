// `gcr-migrate journal`: prints journals, of this machine's agent or copies of another's.
#pragma once

#include "src/cli/options.h"

namespace gcr::cli {

/// Prints every record of every journal that the paths name, the oldest journal of a directory
/// first, and what is wrong with it. Needs no lock and changes nothing. The exit status: 0, 1 if
/// one is damaged, 2 if a path cannot be read.
int journal_command(const JournalOptions& options);

}  // namespace gcr::cli

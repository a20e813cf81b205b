// `gcr-migrate run`: starts a command under the preload library.
#pragma once

#include "src/cli/options.h"

namespace gcr::cli {

/// Becomes the command, with libgcr-preload.so first in LD_PRELOAD and nothing else changed.
/// Returns only if that fails, with the exit status, after writing the error to standard error.
int run_command(const RunOptions& options);

}  // namespace gcr::cli

// Checkpoints at intervals: `gcr-migrate checkpoint --every`.
#pragma once

#include <chrono>

#include "src/cli/order.h"

namespace gcr::cli {

/// Takes checkpoints: each begins `every` after the beginning of the one before, or at once if that
/// took longer, and is reported like carry_out() does. A failed one is retried at the time of the
/// next. Ends, with the status of the last checkpoint, when the process has ended (kEnded); on
/// SIGINT or SIGTERM, which cancel a running checkpoint; after a failure before the first success;
/// and after three failures in a row, so that monitoring of this process notices that the job has
/// no recent checkpoint.
ExitCode take_checkpoints(const Order& order, std::chrono::milliseconds every);

}  // namespace gcr::cli

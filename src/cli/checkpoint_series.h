// Checkpoints at intervals, as `gcr-migrate checkpoint --every` takes them.
#pragma once

#include <chrono>

#include "src/cli/order.h"

namespace gcr::cli {

/// Takes a checkpoint, and the next one `every` after the beginning of the one before, or at once
/// if that took longer. Each is reported as carry_out() does. A failure is tried again at the next
/// one's time. It ends with the status of the last checkpoint: when the process has ended
/// (kEnded), on SIGINT or SIGTERM, which cancel a checkpoint under way, after a failure before the
/// first success, and after three failures in a row: then what watches this process learns that the
/// job goes without checkpoints.
ExitCode take_checkpoints(const Order& order, std::chrono::milliseconds every);

}  // namespace gcr::cli

// CRIU that a dead worker left running.
#pragma once

#include <chrono>
#include <filesystem>

#include "src/base/result.h"

namespace gcr::criu {

/// Waits until no process has anything open in or below `scratch`, the directory of a dead worker's
/// CRIU runs: then CRIU has finished, or failed without the worker, and does not touch the process
/// any more. CRIU is never killed: it may be inside the process. A CRIU at its holding point, which
/// has touched nothing, is released from there and fails. kTimeout if a CRIU still runs after
/// `patience`. Success if the directory does not exist.
Status wait_for_helpers(const std::filesystem::path& scratch, std::chrono::milliseconds patience);

}  // namespace gcr::criu

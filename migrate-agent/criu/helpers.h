// CRIU that a dead worker has left at work.
#pragma once

#include <chrono>
#include <filesystem>

#include "src/base/result.h"

namespace gcr::criu {

/// Waits until no process has anything open in `scratch` or below, the directory of the CRIU runs
/// of one worker that is dead: then CRIU has done what it was at, or failed at it for want of the
/// worker, and touches the process no more. CRIU is never killed: it may be inside the process.
/// One that waits at its holding point, where it has touched nothing, is let go on to its failure.
/// kTimeout if some CRIU is still at work after `patience`. A directory that is not there is fine.
Status wait_for_helpers(const std::filesystem::path& scratch, std::chrono::milliseconds patience);

}  // namespace gcr::criu

// A copy that ends between the destination's vote and the moment that it is let go.
#pragma once

#include "migrate-agent/commit/commit_log.h"
#include "src/base/result.h"

namespace gcr::agent {

/// Looks at the restored copy; if it has ended, or with it the host, gives it up (copy_lost). True:
/// it is lost, and the journal is aborted. For the journal's owner alone, in restored, or in
/// committed if the caller has written that itself and has not let the copy go: only then it is
/// certain that the copy never ran. Blocks.
Result<bool> give_up_lost_copy(commit::DestinationLog& log);

}  // namespace gcr::agent

// A copy that ends between the destination's vote and the moment when it would run.
#pragma once

#include "migrate-agent/commit/commit_log.h"
#include "src/base/result.h"

namespace gcr::agent {

/// Checks the restored copy; if it has ended, or the host was restarted, gives it up (copy_lost).
/// True: it is lost, and the journal is aborted. Only for the journal's owner, in restored, or in
/// committed if the caller has written that itself and has not let the copy run: only then it is
/// certain that the copy never ran. Blocks.
Result<bool> give_up_lost_copy(commit::DestinationLog& log);

}  // namespace gcr::agent

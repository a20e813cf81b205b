// What becomes of the destination's copy once the migration is decided: as source.h, for the
// destination. `group` is the one that the copy is in.
#pragma once

#include <string>

#include "migrate-agent/commit/states/commit_log.h"
#include "migrate-agent/linux/cgroups/group.h"
#include "migrate-agent/worker/config/config.h"

namespace gcr::finish {

/// The copy, by the journal; it is there from the vote on.
const journal::Restored& copy_of(const commit::DestinationLog& log);

/// Checks the restored copy; if it has ended, or the host was restarted, gives it up (copy_lost).
/// True: it is lost, and the journal is aborted. Only in restored, or in committed if the caller
/// has written that itself and has not let the copy run: only then it is certain that the copy
/// never ran.
Result<bool> give_up_lost_copy(commit::DestinationLog& log);

/// In restored: takes the step `told` with its `record` (Committed or Resolved), checking the copy
/// before and after, and lets it run. In committed, which a dead owner has written: lets it run if
/// it has not ended. A copy that arrives suspended goes to a suspension instead. Afterwards the
/// journal is committed, or aborted because the copy was lost.
///
/// If a job of Slurm's is to own the copy, all of it joins that job before any of it runs. If that
/// job has ended by then, the copy is killed: the result says so, and is empty otherwise.
Result<std::string> let_go(commit::DestinationLog& log, const worker::Config& config,
                           const cgroups::Group& group, commit::DestinationEvent told,
                           journal::Record record);

/// After let_go(), and CommitReply if that can be sent: writes Finished. `ended`: what let_go()
/// gave.
Status finish_running(commit::DestinationLog& log, const std::string& ended);

/// Takes the step `why` with its `record` (Aborted or Resolved) unless the journal is aborted
/// already, destroys the copy and its group, and writes Finished.
Status clear(commit::DestinationLog& log, const cgroups::Group& group, commit::DestinationEvent why,
             journal::Record record);

}  // namespace gcr::finish

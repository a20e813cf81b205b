// Releases or destroys the destination's copy once the migration is decided, for workers and
// recoveries. Functions block and need only the journal, which the caller owns; after a failure its
// next owner calls them again. `group` is the control group of the copy.
#pragma once

#include <string>

#include "migrate-agent/commit/states/commit_log.h"
#include "migrate-agent/linux/cgroups/group.h"
#include "migrate-agent/worker/config/config.h"

namespace gcr::finish {

/// The restored processes, from the journal. Only after the vote.
const journal::Restored& copy_of(const commit::DestinationLog& log);

/// Checks that the restored copy exists. If it has ended, or the host was restarted, writes the
/// record Aborted with copy_lost and gives true. Call it only in restored, or in committed if the
/// caller wrote that record itself and has not released the copy: only then is it certain that the
/// copy never ran.
Result<bool> abort_if_lost(commit::DestinationLog& log);

/// Releases the copy. In restored: takes the step `event` with its `record` (Committed or
/// Resolved), checks the copy before and after, and lets it run. In committed, if a dead owner
/// wrote that record: lets the copy run if it has not ended. A copy that arrives suspended is not
/// run; it becomes a suspended job of this host. Afterwards the journal is committed, or aborted
/// because the copy was lost.
///
/// If a Slurm job is to own the copy, all of its processes join that job before any of them runs.
/// If the Slurm job has ended by then, the copy is killed, and the result is the reason; otherwise
/// the result is empty.
Result<std::string> release_copy(commit::DestinationLog& log, const worker::Config& config,
                                 const cgroups::Group& group, commit::DestinationEvent event,
                                 journal::Record record);

/// Writes Finished, after CommitReply was sent if it can be. `ended`: the result of release_copy().
Status finish_running(commit::DestinationLog& log, const std::string& ended);

/// Destroys the copy and its group. Takes the step `why` with its `record` (Aborted or Resolved)
/// first, unless the journal is aborted already, and writes Finished at the end.
Status destroy_copy(commit::DestinationLog& log, const cgroups::Group& group,
                    commit::DestinationEvent why, journal::Record record);

}  // namespace gcr::finish

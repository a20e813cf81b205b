// What becomes of the source's copy once the migration is decided. The living worker does it by
// these functions, and so does recovery after the worker's death: nothing is needed but the
// journal, whose owner the caller is. All of them block. After a failure, whoever owns the journal
// next calls them again.
#pragma once

#include "migrate-agent/commit/states/commit_log.h"
#include "migrate-agent/commit/states/outcome.h"
#include "migrate-agent/migration/undo/recovery.h"
#include "migrate-agent/worker/config/config.h"

namespace gcr::finish {

/// Before the commit, after CopyLost, or if an operator says so. Takes the step `why` with its
/// `record` (Aborted or Resolved), unless that was done before; brings the process back; ends the
/// keeper, removes CRIU's directory and writes Finished. On success the process runs here, or has
/// ended. If the step cannot be written, the process is brought back all the same, except from
/// committed, and the Error is the journal's. A job that was suspended before is suspended again.
Status undo(commit::SourceLog& log, const worker::Config& config, commit::SourceEvent why,
            journal::Record record, const undo::InHand* in_hand = nullptr);

/// The same without its end: the process runs here, or has ended, but Finished is not written.
/// Gives the text for it. For whoever has more to do first.
Result<std::string> take_back(commit::SourceLog& log, const worker::Config& config,
                              commit::SourceEvent why, journal::Record record,
                              const undo::InHand* in_hand = nullptr);

/// In committed or discarded: kills the stopped copy, ends the keeper, removes CRIU's directory and
/// writes Finished with `text`; before that likewise in the journal that had suspended the job, if
/// one has.
Status end_copy(commit::SourceLog& log, const worker::Config& config, const std::string& text);

/// In suspended, and whoever worked on it is dead: freezes the job again if need be, and ends a
/// keeper that a resume had started. If the whole job has ended, ends the keeper of its copy too
/// and writes Finished.
Status stay_suspended(commit::SourceLog& log, const worker::Config& config);

/// In resuming: lets the job run, on the GPUs that Resuming names, with the VRAM that the keeper
/// has; ends the keepers and writes Finished. On success it runs, or has ended.
Status run_again(commit::SourceLog& log, const worker::Config& config);

/// In committed: what `answer` demands.
Status settle(commit::SourceLog& log, const worker::Config& config,
              const commit::CommitAnswer& answer, const undo::InHand* in_hand = nullptr);

}  // namespace gcr::finish

// Rolls back or completes the source's side once the migration is decided. The living worker and a
// recovery both use these functions: they need only the journal, which the caller owns. All of them
// block. After a failure, the next owner of the journal calls them again.
#pragma once

#include "migrate-agent/commit/states/commit_log.h"
#include "migrate-agent/commit/states/outcome.h"
#include "migrate-agent/migration/undo/recovery.h"
#include "migrate-agent/worker/config/config.h"

namespace gcr::finish {

/// Rolls the migration back: before the commit, after CopyLost, or by an operator's decision. Takes
/// the step `why` with its `record` (Aborted or Resolved) unless that was done before, resumes the
/// process, ends the keeper, removes CRIU's directory and writes Finished. After success the
/// process runs here or has ended; a job that was suspended before is suspended again. If the step
/// cannot be written, the process is resumed all the same, except from committed, and the journal's
/// Error is returned.
Status undo(commit::SourceLog& log, const worker::Config& config, commit::SourceEvent why,
            journal::Record record, const undo::WorkerState* worker_state = nullptr);

/// The first part of undo(): the process runs here or has ended, but Finished is not written. Gives
/// the text for Finished. For callers that have more to do before it.
Result<std::string> roll_back(commit::SourceLog& log, const worker::Config& config,
                              commit::SourceEvent why, journal::Record record,
                              const undo::WorkerState* worker_state = nullptr);

/// In committed or discarded: kills the stopped copy, ends the keeper, removes CRIU's directory and
/// writes Finished with `text`. If the job was suspended before, finishes the journal of that
/// suspension first.
Status end_copy(commit::SourceLog& log, const worker::Config& config, const std::string& text);

/// In suspended, after the death of a worker that used the job: freezes the job again if necessary,
/// and ends a keeper that a resume had started. If all members have ended, ends the keeper of the
/// VRAM copy too and writes Finished.
Status stay_suspended(commit::SourceLog& log, const worker::Config& config);

/// In resuming: resumes the job on the GPUs in the record Resuming, with the VRAM that the keeper
/// holds; then ends the keepers and writes Finished. After success the job runs or has ended.
Status run_again(commit::SourceLog& log, const worker::Config& config);

/// In committed: ends the source's copy after CommitReply, or rolls back after CopyLost.
Status settle(commit::SourceLog& log, const worker::Config& config,
              const commit::CommitAnswer& answer, const undo::WorkerState* worker_state = nullptr);

}  // namespace gcr::finish

// What all courses share: steps, findings, the journal, the vote, the commit, undo and report.
//
// A course is a list of steps. Each step returns the input of the next one as a type: a Claimed job
// is examined, a Begun one is prepared, the target votes about what was Sent, and a Vote is
// committed. A course commits with a target, or ends on this host (suspend, resume).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "migrate-agent/commit/states/commit_log.h"
#include "migrate-agent/migration/engine/console.h"
#include "migrate-agent/migration/target/target.h"
#include "migrate-agent/migration/undo/recovery.h"
#include "migrate-agent/worker/runtime/context.h"
#include "migrate-agent/worker/runtime/offload.h"
#include "migrate-agent/worker/runtime/phases.h"
#include "src/base/uuid.h"

namespace gcr::migration {

/// The state of one course of any kind, and its report to operators, recoveries and the daemon. The
/// journal's log is the only record of whether it is committed. Steps write figures into the
/// report; no decision depends on it.
struct Run {
  worker::WorkerContext& worker;
  Console& console;
  Uuid migration = Uuid::random();
  worker::Phases phases{"source", console.started()};
  journal::Began began{};  ///< known so far, for the journal and the daemon
  proto::MigrateReport report{};
  std::optional<commit::SourceLog> log{};  ///< once both sides have agreed
  bool recovering = false;                 ///< this course could not finish: a recovery has to

  bool committed() const;
};

/// Sets the fields that every course has at its start.
void introduce(Run& run);

/// Runs `step`, unless the course was cancelled. An exception becomes an Error.
template <class Step>
std::invoke_result_t<Step&> first(const Run& run, Step step) {
  return worker::guarded([&]() -> std::invoke_result_t<Step&> {
    GCR_TRY(run.worker.cancellation.check());
    return step();
  });
}

/// Runs the next step, `step(*before)`, unless `before` failed.
template <class Before, class Step>
std::invoke_result_t<Step&, Before&> then(const Run& run, Result<Before>& before, Step step) {
  if (!before) return before.error();
  return first(run, [&] { return step(*before); });
}

/// While the registration exists, a cancellation of the course interrupts waits for `target`.
worker::Cancellation::Registration interrupt_when_cancelled(const Run& run, Target& target);

/// Runs both concurrently on `target`'s channel. If one fails, the channel is cancelled, which ends
/// the other; the Error is that of the one that failed first.
Status send_both(Target& target, const std::function<Status()>& vram,
                 const std::function<Status()>& images);

/// Why a course failed: the cancellation if there is one, since it interrupts waits; else `failed`.
Error reason_of(const Run& run, const Error& failed);

/// Adds warnings to the report's notes, each once. The Error names the blockers, if any.
Status judge(Run& run, const std::vector<proto::Finding>& findings);

/// Creates the journal from run.began. From here on the migration survives this worker.
Status begin_journal(Run& run);

/// Makes the migration reachable for other agents and operators, and sends its id to its operator.
Status announce(Run& run);

/// The request for the target's vote, with all that was sent to the target.
struct Sent {
  proto::RestoreRequest request{};
};

/// The target's vote: it has restored the job and keeps it stopped.
struct Vote {
  proto::RestoreReply reply;
};

/// Writes the record Awaiting: from here on the target may vote.
Status await_vote(Run& run);

/// Asks the target for its vote, and adds the vote's notes, phases and figures to the report.
/// kDataLoss if the target did not verify every chunk that has a digest in the request.
Result<Vote> ask_for_vote(Run& run, Target& target, const Sent& sent);

/// What a course has to undo, and how it explains its failure.
struct Undoing {
  /// The worker's state of the processes; null: the worker has not touched them.
  const undo::WorkerState* worker_state = nullptr;
  /// Called after the undo: gives the reason of the failure for its cause.
  std::function<Error(Error cause)> explain = [](Error cause) { return cause; };
};

/// The Error after an undo with the result `done`: the reason of the failure if the undo succeeded,
/// else that a recovery has to continue.
Error undone(Run& run, const Error& cause, const Status& done, const Undoing& undoing = {});

/// Before the commit: undoes everything because of `cause`, then sends an abort to the target.
/// Gives why the course failed, and whether a recovery has to continue.
Error give_up(Run& run, Target* target, const Error& cause, const Undoing& undoing = {});

/// Writes Committed, orders the commit, and applies the answer: the source's copy ends or, if the
/// target lost its copy, resumes. Gives the target's confirmation. After an Error run.committed()
/// and run.recovering show the state. `unconfirmed` is appended to the Error of a commit that the
/// target did not confirm.
Result<proto::CommitReply> commit(Run& run, Target& target, const Vote& vote,
                                  const Undoing& undoing, const std::string& unconfirmed);

/// Completes the report with the result of the course, and sends it to the daemon and the operator.
/// `failure` begins the log line of a failure: "migration of process 12 failed". `stays_suspended`:
/// the job was suspended before and still is.
void conclude(Run& run, const Status& done, const std::string& failure,
              bool stays_suspended = false);

}  // namespace gcr::migration

// What all courses have in common: their steps, their findings, the journal's beginning, the vote,
// the commit, the undoing, and what is said of them at the end.
//
// A course is a list of steps. Each gives what the next one needs, as a type: a job that is Claimed
// is examined, one that has Begun is prepared, what was Sent is voted about, what has a Vote is
// committed. A course commits with a target, or ends on this host (suspend, resume).
#pragma once

#include <future>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
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

/// One course, whatever it does: what operators, recoveries and the daemon are told of it. The
/// journal's log is the one place that knows whether it is committed. Steps write figures into the
/// report; nothing is decided by it.
struct Run {
  worker::WorkerContext& worker;
  Console& console;
  Uuid migration = Uuid::random();
  worker::Phases phases{"source", console.started()};
  journal::Began began{};  ///< what is known so far, for the journal and the daemon
  proto::MigrateReport report{};
  std::optional<commit::SourceLog> log{};  ///< once both sides have agreed
  bool recovering = false;                 ///< a recovery has to finish what this course could not

  bool committed() const;
};

/// Fills in what is known of each course at its start.
void introduce(Run& run);

/// `step()`, unless the course was cancelled. An exception becomes an Error.
template <class Step>
std::invoke_result_t<Step&> first(const Run& run, Step step) {
  return worker::guarded([&]() -> std::invoke_result_t<Step&> {
    GCR_TRY(run.worker.cancellation.check());
    return step();
  });
}

/// The next step, `step(*before)`, unless `before` failed.
template <class Before, class Step>
std::invoke_result_t<Step&, Before&> then(const Run& run, Result<Before>& before, Step step) {
  if (!before) return before.error();
  return first(run, [&] { return step(*before); });
}

/// Runs both concurrently on `target`'s channel. Where one fails, the channel is cancelled, which
/// ends the other; the Error is that of the one that failed first.
Status send_both(Target& target, const std::function<Status()>& vram,
                 const std::function<Status()>& images);

/// Why a course failed: `failed`, or that it was cancelled, since an interrupted wait only reports
/// the interruption.
Error reason_of(const Run& run, const Error& failed);

/// Warnings become notes of the report, each once; blockers are the Error.
Status judge(Run& run, const std::vector<proto::Finding>& findings);

/// Makes the migration one that survives this worker, as run.began describes it.
Status begin_journal(Run& run);

/// Other agents and operators reach this migration from now on, and its operator is told so.
Status announce(Run& run);

/// All that the target votes about: what was sent to it.
struct Sent {
  proto::RestoreRequest request{};
};

/// The target has restored the job, and holds it stopped.
struct Vote {
  proto::RestoreReply reply;
};

/// The journal says that the target may vote.
Status await_vote(Run& run);

/// Asks the target for its vote. Its notes, phases and figures go into the report. kDataLoss if it
/// did not verify every chunk that has a digest in the request.
Result<Vote> ask_for_vote(Run& run, Target& target, const Sent& sent);

/// What a course has to undo, and how it says why.
struct Undoing {
  /// What the worker has of the processes; null: nothing.
  const undo::InHand* in_hand = nullptr;
  /// After the undoing: why the course failed, from its cause.
  std::function<Error(Error cause)> explain = [](Error cause) { return cause; };
};

/// After an undoing with the result `done`: why the course failed, from its `cause`; or why a
/// recovery has to go on.
Error undone(Run& run, const Error& cause, const Status& done, const Undoing& undoing = {});

/// Before the commit: undoes everything because of `cause`, then tells the target. Gives why the
/// course failed, and whether a recovery has to go on. Never succeeds.
Error give_up(Run& run, Target* target, const Error& cause, const Undoing& undoing = {});

/// Writes the decision, orders the commit, and does what the answer demands: the source's copy
/// ends, or, if the target lost its copy, runs again. What the target confirmed, or an Error: then
/// run.committed() and run.recovering say how it stands. `unconfirmed` ends the text of a commit
/// that the target did not confirm.
Result<proto::CommitReply> commit(Run& run, Target& target, const Vote& vote,
                                  const Undoing& undoing, const std::string& unconfirmed);

/// Completes the report by how the course has ended, and tells the daemon and the operator.
/// `failure` begins the log line of a failure: "migration of process 12 failed".
/// `stays_suspended`: the job was suspended before, and still is.
void conclude(Run& run, const Status& done, const std::string& failure,
              bool stays_suspended = false);

}  // namespace gcr::migration

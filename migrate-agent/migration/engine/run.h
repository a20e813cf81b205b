// What all courses do alike. A course is a list of steps over a state of its own; its Run has what
// is told to others: to the operator by the console and the report, to recoveries by the journal,
// to the daemon at the end. A course commits with a target, or ends on this host (suspend, resume).
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "migrate-agent/commit/states/commit_log.h"
#include "migrate-agent/migration/engine/console.h"
#include "migrate-agent/migration/target/target.h"
#include "migrate-agent/migration/undo/recovery.h"
#include "migrate-agent/worker/runtime/context.h"
#include "migrate-agent/worker/runtime/phases.h"
#include "src/base/uuid.h"

namespace gcr::migration {

struct Run {
  worker::WorkerContext& worker;
  Console& console;
  Uuid migration = Uuid::random();
  worker::Phases phases{"source", console.started()};
  proto::MigrateReport report{};
  std::optional<commit::SourceLog> log{};  ///< once both sides have agreed
};

/// One step after the other, until one fails or the course is cancelled before it.
template <class State>
Status run_steps(const Run& run, State& state, std::initializer_list<Status (*)(State&)> steps) {
  for (const auto step : steps) {
    GCR_TRY(run.worker.cancellation.check());
    GCR_TRY(step(state));
  }
  return {};
}

/// Why a course failed: `failed`, or that it was cancelled, since an interrupted wait only reports
/// the interruption.
Error reason_of(const Run& run, const Error& failed);

/// Warnings become notes of the report, each once; blockers are the Error.
Status judge(Run& run, const std::vector<proto::Finding>& findings);

/// Makes the migration one that survives this worker.
Status begin_journal(Run& run, journal::Began began);

/// Other agents and operators reach this migration from now on, and its operator is told so.
Status announce(Run& run);

/// The journal says from here on that the target may vote.
Status await_vote(Run& run);

/// The target's vote on all that was sent: it must have verified every chunk that has a digest in
/// `request`. Its notes, phases and figures go into the report.
Status ask_for_vote(Run& run, Target& target, const proto::RestoreRequest& request);

/// What a course adds to its commit.
struct Commit {
  /// The decision could not be written: undoes all. Gives why the course failed.
  std::function<Error(Error cause)> give_up;
  /// The target has answered, or cannot be reached.
  std::function<void()> answered;
  /// What a living worker has of the processes, for finish::settle(). None: nothing.
  std::function<undo::InHand()> in_hand;
  /// The copy was lost and the course undone, if `undone` is a success: gives why it failed.
  std::function<Error(const Error& lost, const Status& undone)> went_back;
  /// What an unconfirmed commit means here, for its text.
  std::string unconfirmed;
};

/// After the vote: writes the decision, orders the commit, and settles what the answer demands.
/// What the target confirmed, or an Error: then report.committed() and report.recovering() say how
/// it stands.
Result<proto::CommitReply> commit(Run& run, Target& target, const Commit& course);

/// Completes the report by how the course has ended, and tells the daemon, whether or not there is
/// a journal, and the operator. `began` is as far as it is known; `what` was not done to whom, for
/// the log: "process 12 was not migrated".
void conclude(Run& run, journal::Began began, const Status& done, const std::string& what);

}  // namespace gcr::migration

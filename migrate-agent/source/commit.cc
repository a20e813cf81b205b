// The end of the source's course: the commit, or the way back. SourceProcess::State says how far
// the process has been taken apart, and every failure before the commit leads back to a running
// process.
#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "migrate-agent/fault/fault.h"
#include "migrate-agent/roles/outcome.h"
#include "migrate-agent/roles/records.h"
#include "migrate-agent/source/course.h"
#include "migrate-agent/worker/other_agent.h"
#include "src/base/log.h"

namespace gcr::agent::source {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kCommitPause{200};
/// For a process whose door closed because it ends, which takes only a moment.
constexpr milliseconds kEndPatience{2000};
/// For a living process to answer at its door.
constexpr milliseconds kDoorPatience{1000};

/// Before the commit: undoes everything that was done to the process.
Status roll_back(Course& c) {
  auto& process = c.subject.process;
  proto::MigrateReport& report = c.account.report;
  if (!process) return {};
  // One that was killed while it was stopped may exist until its last thread is released.
  if (report.process_ended()) return process->kill();
  mover::Descriptors descriptors;
  if (process->state() > SourceProcess::State::kGated) {
    GCR_ASSIGN(descriptors, c.copying.vram->descriptors());
  }
  const Status rolled_back = process->roll_back(std::move(descriptors));
  if (rolled_back) return {};
  if (!c.subject.handle->ends_within(kEndPatience)) return rolled_back;
  report.set_process_ended(true);
  return process->kill();
}

/// Records whether the process has ended by itself, besides any other error.
void look_for_end(Course& c) {
  const auto& handle = c.subject.handle;
  auto& process = c.subject.process;
  if (!handle) return;
  bool ended = handle->is_ending();
  if (!ended && process && process->state() < SourceProcess::State::kLocked) {
    const auto answered = process->door().hello(kDoorPatience);
    ended = !answered && answered.error().code() == Code::kNotFound &&
            handle->ends_within(kEndPatience);
  }
  c.account.report.set_process_ended(ended);
}

/// `cause`, or that the process has ended, if it has.
Error or_its_end(const Course& c, Error cause) {
  if (!c.account.report.process_ended()) return cause;
  return Error(Code::kNotFound, fmt::format("process {} ended by itself before it was moved",
                                            c.order.request.pid()));
}

/// Rolls back, so that nothing of the migration is left here. Never succeeds: gives `cause`, or why
/// there is more to do.
Status go_on_here(Course& c, const Error& cause) {
  const Status resumed = guarded([&]() -> Status {
    GCR_TRY(roll_back(c));
    c.copying.scratch.reset();
    if (c.subject.keeper) GCR_TRY(c.subject.keeper->end());
    const char* what =
        c.account.report.process_ended() ? "the process has ended" : "the process runs here";
    return c.account.log->advance(commit::SourceEvent::kRolledBack, finished(what));
  });
  if (resumed) {
    count_undone_closing(c);
    return or_its_end(c, cause);
  }
  c.account.report.set_recovering(true);
  return Error(Code::kInternal, fmt::format("{}; and the source could not be resumed yet: {}",
                                            cause.message(), resumed.error().message()));
}

/// The destination's copy never ran. If the journal cannot be written, recovery asks again and gets
/// the same answer.
Status take_back(Course& c, const proto::CopyLost& lost) {
  const Error cause = copy_lost(lost);
  GCR_TRY(c.account.log->advance(commit::SourceEvent::kCopyLost, aborted(cause)));
  c.account.report.set_committed(false);
  c.console.set_committed(false);
  return go_on_here(c, cause);
}

/// The destination's copy runs: nothing of the process is needed here any more.
Status release(Course& c, pid_t running_there) {
  GCR_TRY(fault::point("source.confirmed"));
  const Phases::Timer releasing(c.account.phases, "process", "release source");
  return guarded([&]() -> Status {
    GCR_TRY(c.subject.process->kill());
    c.copying.scratch.reset();
    if (c.subject.keeper) GCR_TRY(c.subject.keeper->end());
    GCR_TRY(fault::point("source.killed"));
    return c.account.log->advance(
        commit::SourceEvent::kCommitConfirmed,
        finished(fmt::format("process {} runs at {}", running_there, c.target->name())));
  });
}

/// On the migration's connection, and then for a while on new ones; after that recovery goes on.
Result<commit::CommitAnswer> order_commit(Course& c) {
  GCR_ASSIGN(const auto destination,
             other_agent(c.account.log->journal().began(), c.worker.config, c.worker.tls));
  const auto until = Clock::now() + 2 * c.worker.config.peer_silence();
  auto answer = c.target->commit();
  if (answer) return answer;
  for (;;) {
    const auto delivered = on_io(c.worker.io, deliver_commit(destination, c.order.migration));
    if (delivered) return commit::answer_of(*delivered);
    if (Clock::now() > until) return delivered.error();
    spdlog::warn("the commit is not confirmed yet: {}", delivered.error().message());
    std::this_thread::sleep_for(kCommitPause);
  }
}

/// For the expected downtime of later migrations.
void remember(const Course& c) {
  const Account& account = c.account;
  const double beside_ms = Phases::milliseconds(account.control_took);
  const double overlapped_ms = std::max(beside_ms, Phases::milliseconds(account.last_round_took));
  const double closed_ms =
      account.report.downtime_ms() - Phases::milliseconds(account.undone_closings);
  const MeasuredDowntime measured{account.kind, account.report.prefilled(), beside_ms,
                                  std::max(0.0, closed_ms - overlapped_ms)};
  const Status remembered = remember_downtime(c.worker.config.state_dir, measured);
  if (!remembered) spdlog::warn("{}", remembered.error().message());
}

}  // namespace

Status commit(Course& c) {
  const Phases::Timer timer(c.account.phases, "course", "commit");
  proto::MigrateReport& report = c.account.report;
  journal::Record record;
  record.mutable_committed();
  const Status decided =
      c.account.log->advance(commit::SourceEvent::kVoteReceived, std::move(record));
  if (!decided && decided.error().code() == Code::kDataLoss) {
    // The journal's content is unknown: act as if killed here (recovery reads the journal again).
    report.set_recovering(true);
    return decided;
  }
  if (!decided) return give_up(c, decided.error());
  // From here on the source's copy never runs again, unless the destination answers CopyLost.
  report.set_committed(true);
  c.console.set_committed(true);
  const auto answer = order_commit(c);
  report.set_downtime_ms(
      Phases::milliseconds(c.account.undone_closings + (Clock::now() - *c.account.gate_closed_at)));
  if (!answer) {
    return answer.error().while_doing(
        "the commit was sent but not confirmed; the agent keeps asking, and the stopped process "
        "is kept at the source");
  }
  if (const auto* lost = std::get_if<proto::CopyLost>(&*answer)) return take_back(c, *lost);
  const pid_t pid = std::get<proto::CommitReply>(*answer).pid();
  report.set_destination_pid(pid);
  const Status released = release(c, pid);
  if (!released) report.add_notes("at the source: " + released.error().message());
  remember(c);
  c.console.tell("commit", fmt::format("process {} runs at {}", pid, c.target->name()));
  return {};
}

Status give_up(Course& c, Error cause) {
  if (c.copying.precopy) c.target->channel().cancel();
  look_for_end(c);
  if (c.account.report.process_ended()) spdlog::info("the process has ended: {}", cause.message());
  cause = or_its_end(c, std::move(cause));
  Status given_up = cause;
  if (c.account.log) {
    // Without this record recovery comes to the same decision, because there is no Committed.
    const Status noted = c.account.log->advance(commit::SourceEvent::kFailed, aborted(cause));
    if (!noted) spdlog::error("{}", noted.error().message());
    given_up = go_on_here(c, cause);
  }
  if (c.target != nullptr) c.target->abort(cause.message());
  return given_up;
}

}  // namespace gcr::agent::source

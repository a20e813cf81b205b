#include "migrate-agent/migration/engine/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/post.hpp>
#include <chrono>
#include <future>

#include "migrate-agent/base/findings/catalogue.h"
#include "migrate-agent/commit/states/outcome.h"
#include "migrate-agent/migration/finish/deliver.h"
#include "migrate-agent/migration/finish/records.h"
#include "migrate-agent/migration/finish/source.h"
#include "src/base/log.h"
#include "src/base/units.h"
#include "src/control/wire.h"

namespace gcr::migration {
namespace {

using Clock = worker::Phases::Clock;

constexpr std::chrono::milliseconds kCommitPause{200};

/// Orders the commit on the course's own connection, then on new ones until a recovery takes over.
Result<commit::CommitAnswer> order_commit(Run& run, Target& target) {
  const auto until = Clock::now() + 2 * run.worker.config.peer_silence();
  auto answer = target.commit();
  if (answer) return answer;
  finish::Backoff backoff(run.worker.io, kCommitPause);
  return worker::on_io(run.worker.io,
                       finish::deliver_commit(run.worker, run.log->journal(), backoff, until));
}

registry::Outcome::Left left_by(const Run& run, bool stays_suspended) {
  using registry::Outcome;
  if (run.recovering) return Outcome::UNFINISHED;
  if (stays_suspended) return Outcome::SUSPENDED;
  if (!run.log) return Outcome::NOTHING;
  if (run.log->state() == commit::SourceState::kSuspended) return Outcome::SUSPENDED;
  return journal::unfinished(run.log->journal().records()) ? Outcome::UNFINISHED : Outcome::NOTHING;
}

}  // namespace

bool Run::committed() const {
  return log && commit::outcome_of(log->state()) == proto::OutcomeReply::COMMITTED;
}

void introduce(Run& run) {
  log_migration(run.migration);
  run.began.set_migration_id(to_bytes(run.migration));
  run.began.set_role(journal::Began::SOURCE);
  run.began.set_ordered_by(run.worker.channel.peer().common_name);
}

worker::Cancellation::Registration interrupt_when_cancelled(const Run& run, Target& target) {
  worker::Cancellation& cancellation = run.worker.cancellation;
  return cancellation.on_request(
      [&cancellation, &target] { target.interrupt(cancellation.check().error()); });
}

Status send_both(Target& target, const std::function<Status()>& vram,
                 const std::function<Status()>& images) {
  const auto run = [&target](const std::function<Status()>& send) {
    const Status sent = worker::guarded(send);
    if (!sent) target.channel().cancel();
    return sent;
  };
  auto vram_sent = std::async(std::launch::async, [&] { return run(vram); });
  const Status images_sent = run(images);
  const Status other = vram_sent.get();
  // A failing destination sends the reason on the control channel, which the images' thread uses. A
  // thread that was cancelled here has no reason of its own.
  const bool ended_by_other = !images_sent && images_sent.error().code() == Code::kCancelled;
  return images_sent || (ended_by_other && !other) ? other : images_sent;
}

Error reason_of(const Run& run, const Error& failed) {
  const Status wanted = run.worker.cancellation.check();
  return wanted ? failed : wanted.error();
}

Status judge(Run& run, const std::vector<proto::Finding>& findings) {
  const auto& notes = run.report.notes();
  for (const proto::Finding& finding : findings) {
    if (findings::is_blocker(finding)) continue;
    std::string text = findings::note_of(finding);
    if (std::ranges::find(notes, text) == notes.end()) run.report.add_notes(std::move(text));
  }
  std::string reason = findings::reason_of(findings);
  if (reason.empty()) return {};
  return Error(Code::kRefused, std::move(reason));
}

Status begin_journal(Run& run) {
  GCR_ASSIGN(run.log,
             commit::SourceLog::create(run.worker.config.state_dir, run.migration, run.began));
  return {};
}

Status announce(Run& run) {
  GCR_TRY(worker::on_io(
      run.worker.io, [&] { return run.worker.line.open(run.migration, journal::Began::SOURCE); }));
  proto::Envelope started;
  started.mutable_started()->set_migration_id(to_bytes(run.migration));
  run.console.tell(std::move(started));
  return {};
}

Status await_vote(Run& run) {
  journal::Record record;
  record.mutable_awaiting();
  return run.log->advance(commit::SourceEvent::kAskRestore, std::move(record));
}

Result<Vote> ask_for_vote(Run& run, Target& target, const Sent& sent) {
  std::uint64_t chunks = 0;
  for (const proto::BufferDigests& buffer : sent.request.digests()) {
    chunks += buffer.digests().size() / sizeof(digest::Digest);
  }
  GCR_ASSIGN(proto::RestoreReply reply, target.restore(sent.request));
  if (reply.verified_chunks() != chunks) {
    return Error(Code::kDataLoss, fmt::format("the destination verified {} of {} chunks",
                                              reply.verified_chunks(), chunks));
  }
  run.report.set_verified(true);
  run.report.set_prefilled(reply.prefilled());
  run.report.set_stored_bytes(reply.stored_bytes());
  run.report.set_shared_bytes(reply.shared_bytes());
  for (const std::string& text : reply.notes()) run.report.add_notes(text);
  const double to_ours_ms = run.phases.since_origin_ms(Clock::time_point{});
  for (const proto::PhaseTime& phase : reply.phases()) {
    proto::PhaseTime& ours = *run.report.add_phases();
    ours = phase;
    ours.set_start_ms(phase.start_ms() + to_ours_ms);
  }
  return Vote{std::move(reply)};
}

Error undone(Run& run, const Error& cause, const Status& done, const Undoing& undoing) {
  if (done) return undoing.explain(cause);
  run.recovering = true;
  const char* const failed = run.began.loads() ? "the restore could not be undone"
                                               : "the process could not be resumed at the source";
  return Error(Code::kInternal, fmt::format("{}; {} yet, and the agent keeps trying: {}",
                                            cause.message(), failed, done.error().message()));
}

Error give_up(Run& run, Target* target, const Error& cause, const Undoing& undoing) {
  Error reason = cause;
  if (run.log) {
    const Status done = worker::guarded([&] {
      return finish::undo(*run.log, run.worker.config, commit::SourceEvent::kFailed,
                          finish::aborted(cause), undoing.worker_state);
    });
    reason = undone(run, cause, done, undoing);
  }
  if (target != nullptr) target->abort(cause.message());
  return reason;
}

Result<proto::CommitReply> commit(Run& run, Target& target, const Vote&, const Undoing& undoing,
                                  const std::string& unconfirmed) {
  journal::Record record;
  record.mutable_committed();
  const Status decided = run.log->advance(commit::SourceEvent::kVoteReceived, std::move(record));
  if (!decided && decided.error().code() == Code::kDataLoss) {
    // Whether the journal has the record is unknown: a recovery reads the journal again.
    run.recovering = true;
    return decided.error();
  }
  if (!decided) return give_up(run, &target, decided.error(), undoing);
  // From here on the source's copy never runs again, unless the destination answers CopyLost.
  run.console.set_committed(true);
  const auto answer = order_commit(run, target);
  DowntimeClock& downtime = run.console.downtime();
  if (downtime.since()) run.report.set_downtime_ms(in_milliseconds(downtime.end()));
  if (!answer) {
    return answer.error().while_doing("the commit was sent but not confirmed" + unconfirmed);
  }
  const auto* lost = std::get_if<Error>(&*answer);
  const Status settled =
      run.phases.time("process", lost != nullptr ? "take back" : "release source", [&] {
        return worker::guarded([&] {
          return finish::settle(*run.log, run.worker.config, *answer, undoing.worker_state);
        });
      });
  if (lost != nullptr) {
    run.console.set_committed(run.committed());
    // If the journal cannot be written, a recovery asks again and gets the same answer.
    if (run.committed()) return settled.error();
    return undone(run, *lost, settled, undoing);
  }
  const auto& confirmed = std::get<proto::CommitReply>(*answer);
  for (const std::string& text : confirmed.notes()) run.report.add_notes(control::printable(text));
  if (!settled) run.report.add_notes("at the source: " + settled.error().message());
  return confirmed;
}

void conclude(Run& run, const Status& done, const std::string& failure, bool stays_suspended) {
  run.console.end_copying();  // the console lives longer than the target
  proto::MigrateReport& report = run.report;
  if (!done) {
    report.set_code(std::string(to_string(done.error().code())));
    report.set_message(done.error().message());
    spdlog::error("{}: {}", failure, done.error().message());
  }
  report.set_migration_id(run.began.migration_id());
  report.set_committed(run.committed());
  report.set_recovering(run.recovering);
  report.set_total_ms(run.phases.since_origin_ms(Clock::now()));
  for (proto::PhaseTime& phase : run.phases.list()) *report.add_phases() = std::move(phase);
  asio::post(run.worker.io,
             [&daemon = run.worker.daemon,
              outcome = commit::outcome_for_daemon(run.began, report, left_by(run, stays_suspended),
                                                   run.log ? run.log->write_errors() : 0)] {
               daemon.report_outcome(outcome);
             });
  proto::Envelope envelope;
  *envelope.mutable_migrate_report() = report;
  run.console.tell(std::move(envelope));
}

}  // namespace gcr::migration

#include "migrate-agent/migration/engine/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/post.hpp>
#include <chrono>

#include "migrate-agent/base/findings/catalogue.h"
#include "migrate-agent/commit/states/outcome.h"
#include "migrate-agent/migration/finish/deliver.h"
#include "migrate-agent/migration/finish/source.h"
#include "src/base/log.h"
#include "src/control/wire.h"

namespace gcr::migration {
namespace {

using Clock = worker::Phases::Clock;

constexpr std::chrono::milliseconds kCommitPause{200};

void note(Run& run, const proto::Finding& warning) {
  std::string text = findings::note_of(warning);
  const auto& notes = run.report.notes();
  if (std::ranges::find(notes, text) == notes.end()) run.report.add_notes(std::move(text));
}

/// On the course's own connection, and then for a while on new ones; after that recovery goes on.
Result<commit::CommitAnswer> order_commit(Run& run, Target& target) {
  const auto until = Clock::now() + 2 * run.worker.config.peer_silence();
  auto answer = target.commit();
  if (answer) return answer;
  finish::Backoff backoff(run.worker.io, kCommitPause);
  return worker::on_io(run.worker.io,
                       finish::deliver_commit(run.worker, run.log->journal(), backoff, until));
}

void set_committed(Run& run, bool committed) {
  run.report.set_committed(committed);
  run.console.set_committed(committed);
}

}  // namespace

Error reason_of(const Run& run, const Error& failed) {
  const Status wanted = run.worker.cancellation.check();
  return wanted ? failed : wanted.error();
}

Status judge(Run& run, const std::vector<proto::Finding>& findings) {
  for (const proto::Finding& finding : findings) {
    if (!findings::is_blocker(finding)) note(run, finding);
  }
  std::string reason = findings::reason_of(findings);
  if (reason.empty()) return {};
  return Error(Code::kRefused, std::move(reason));
}

Status begin_journal(Run& run, journal::Began began) {
  GCR_ASSIGN(run.log, commit::SourceLog::create(run.worker.config.state_dir, run.migration,
                                                std::move(began)));
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

Status ask_for_vote(Run& run, Target& target, const proto::RestoreRequest& request) {
  std::uint64_t chunks = 0;
  for (const proto::BufferDigests& buffer : request.digests()) {
    chunks += buffer.digests().size() / sizeof(digest::Digest);
  }
  GCR_ASSIGN(proto::RestoreReply vote, target.restore(request));
  if (vote.verified_chunks() != chunks) {
    return Error(Code::kDataLoss, fmt::format("the destination verified {} of {} chunks",
                                              vote.verified_chunks(), chunks));
  }
  run.report.set_verified(true);
  run.report.set_prefilled(vote.prefilled());
  run.report.set_stored_bytes(vote.stored_bytes());
  run.report.set_shared_bytes(vote.shared_bytes());
  for (const std::string& text : vote.notes()) run.report.add_notes(text);
  const double to_ours_ms = run.phases.since_origin_ms(Clock::time_point{});
  for (proto::PhaseTime& phase : *vote.mutable_phases()) {
    phase.set_start_ms(phase.start_ms() + to_ours_ms);
    *run.report.add_phases() = std::move(phase);
  }
  return {};
}

Result<proto::CommitReply> commit(Run& run, Target& target, const Commit& course) {
  journal::Record record;
  record.mutable_committed();
  const Status decided = run.log->advance(commit::SourceEvent::kVoteReceived, std::move(record));
  if (!decided && decided.error().code() == Code::kDataLoss) {
    // The journal's content is unknown: act as if killed here (recovery reads the journal again).
    run.report.set_recovering(true);
    return decided.error();
  }
  if (!decided) return course.give_up(decided.error());
  // From here on the source's copy never runs again, unless the destination answers CopyLost.
  set_committed(run, true);
  const auto answer = order_commit(run, target);
  course.answered();
  if (!answer) {
    return answer.error().while_doing("the commit was sent but not confirmed" + course.unconfirmed);
  }
  const auto* lost = std::get_if<Error>(&*answer);
  const auto hand = course.in_hand ? std::optional(course.in_hand()) : std::nullopt;
  const Status settled =
      run.phases.time("process", lost != nullptr ? "take back" : "release source", [&] {
        return worker::guarded([&] {
          return finish::settle(*run.log, run.worker.config, *answer, hand ? &*hand : nullptr);
        });
      });
  if (lost != nullptr) {
    // If the journal cannot be written, recovery asks again and gets the same answer.
    set_committed(run, run.log->state() == commit::SourceState::kCommitted);
    if (run.report.committed()) return settled.error();
    return course.went_back(*lost, settled);
  }
  const auto& confirmed = std::get<proto::CommitReply>(*answer);
  for (const std::string& text : confirmed.notes()) run.report.add_notes(control::printable(text));
  if (!settled) run.report.add_notes("at the source: " + settled.error().message());
  return confirmed;
}

void conclude(Run& run, journal::Began began, const Status& done, const std::string& what) {
  proto::MigrateReport& report = run.report;
  if (!done) {
    report.set_code(std::string(to_string(done.error().code())));
    report.set_message(done.error().message());
    spdlog::error("{}: {}", what, done.error().message());
  }
  report.set_total_ms(run.phases.since_origin_ms(Clock::now()));
  for (proto::PhaseTime& phase : run.phases.list()) *report.add_phases() = std::move(phase);
  asio::post(run.worker.io, [&daemon = run.worker.daemon,
                             outcome = commit::ending_of(std::move(began), report,
                                                         run.log ? run.log->write_errors() : 0)] {
    daemon.report_outcome(outcome);
  });
  proto::Envelope envelope;
  *envelope.mutable_migrate_report() = report;
  run.console.tell(std::move(envelope));
}

}  // namespace gcr::migration

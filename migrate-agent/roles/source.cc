// The source's course as a whole: examine, prepare, copy while the process runs, switch over,
// commit. proto/PROTOCOL.md has the state machine; every failure before the commit leads back to a
// running process, by the functions of migrate-agent/settlement.
#include "migrate-agent/roles/source.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/post.hpp>

#include "migrate-agent/fault/fault.h"
#include "migrate-agent/preflight/host_facts.h"
#include "migrate-agent/roles/ending.h"
#include "migrate-agent/roles/records.h"
#include "migrate-agent/settlement/deliver.h"
#include "migrate-agent/settlement/records.h"
#include "migrate-agent/settlement/source.h"
#include "src/base/log.h"

namespace gcr::agent {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kCommitPause{200};
/// For a process whose door closed because it ends, which takes only a moment.
constexpr milliseconds kEndPatience{2000};
/// For a living process to answer at its door.
constexpr milliseconds kDoorPatience{1000};
constexpr double kDefaultDowntimeLimitMs = 300;
constexpr unsigned kDefaultMaxRounds = 30;

PrecopyLimits limits_of(const proto::MigrateRequest& request) {
  return {.downtime_ms = request.downtime_limit_ms() > 0 ? request.downtime_limit_ms()
                                                         : kDefaultDowntimeLimitMs,
          .max_rounds = request.max_rounds() > 0 ? request.max_rounds() : kDefaultMaxRounds,
          .auto_converge = request.auto_converge(),
          .strict = request.strict()};
}

}  // namespace

using asio::awaitable;

Source::Source(WorkerContext& context, proto::MigrateRequest request)
    : context_(context),
      request_(std::move(request)),
      limits_(limits_of(request_)),
      phases_("source", start_),
      operator_(context.io, context.channel),
      pause_(context.io) {}

void Source::complete_report() {
  report_.set_total_ms(Phases::milliseconds(Phases::Clock::now() - start_));
  report_.set_downtime_limit_ms(limits_.downtime_ms);
  for (proto::PhaseTime& phase : phases_.list()) *report_.add_phases() = std::move(phase);
  if (channel_ != nullptr) {
    const transport::Statistics statistics = channel_->statistics();
    report_.set_wire_bytes(statistics.wire_bytes);
    report_.set_reconnections(statistics.reconnections);
  }
  if (!precopy_) return;
  for (proto::Round& round : precopy_->rounds()) {
    report_.set_sent_vram_bytes(report_.sent_vram_bytes() + round.sent_bytes());
    *report_.add_rounds() = std::move(round);
  }
}

/// With what is known so far.
journal::Began Source::description() const {
  journal::Began began;
  began.set_migration_id(to_bytes(migration_));
  began.set_role(journal::Began::SOURCE);
  began.set_peer(control::printable(request_.destination()));
  if (peer_ != nullptr) began.set_peer_name(peer_->peer().common_name);
  *began.mutable_members() = members_;
  began.set_uid(claimed_.uid);
  began.set_ordered_by(context_.channel.peer().common_name);
  began.set_command(short_command((found_ ? found_->process : facts_).command()));
  return began;
}

/// For the daemon, whether or not there is a journal.
registry::Outcome Source::ending() const {
  return ending_of(description(), report_, log_ ? log_->write_errors() : 0);
}

awaitable<void> Source::migrate_and_report() {
  report_.set_migration_id(to_bytes(migration_));
  const Status migrated = co_await migrate();
  report_.set_migrated(migrated.has_value());
  if (!migrated) {
    report_.set_code(std::string(to_string(migrated.error().code())));
    report_.set_message(migrated.error().message());
    spdlog::error("process {} was not migrated: {}", request_.pid(), migrated.error().message());
  }
  complete_report();
  context_.daemon.report_outcome(ending());
  proto::Envelope envelope;
  *envelope.mutable_migrate_report() = report_;
  operator_.tell(std::move(envelope));
  co_await operator_.drain();
}

awaitable<Status> Source::migrate() {
  const auto registration = context_.cancellation.on_request([this] {
    asio::post(context_.io, [this] { interrupt(context_.cancellation.check().error()); });
  });
  Status agreed = co_await claim_process();
  if (agreed) agreed = co_await move_to_the_vote();
  if (agreed) co_return co_await commit();
  Error cause = interruption(agreed.error());
  co_return co_await give_up(std::move(cause));
}

awaitable<Status> Source::move_to_the_vote() {
  GCR_CO_TRY(co_await examine_process());
  GCR_CO_TRY(co_await open_peer());
  GCR_CO_TRY(co_await preflight());
  GCR_CO_TRY(co_await begin());
  GCR_CO_TRY(co_await prepare());
  for (bool closed = false; !closed;) {
    GCR_CO_TRY(co_await precopy());
    const Result<bool> gated = co_await close_gate();
    GCR_CO_TRY(gated);
    closed = *gated;
  }
  GCR_CO_TRY(co_await switch_over());
  co_return co_await check_before_commit();
}

/// Only waits on the destination are interrupted; all other steps are bounded.
void Source::interrupt(Error why) {
  if (!interrupted_) interrupted_ = std::move(why);
  pause_.cancel();
  if (channel_ != nullptr) channel_->cancel();
  if (peer_ != nullptr) peer_->abandon_call();
}

Status Source::check() const {
  if (interrupted_) return *interrupted_;
  return {};
}

/// Why a step failed: an interrupted transfer only reports the interruption.
Error Source::interruption(Error error) const { return interrupted_.value_or(std::move(error)); }

/// The next step of the commit's protocol, durable when this returns.
awaitable<Status> Source::note(commit::SourceEvent event, journal::Record record) {
  co_return co_await offload(context_.blocking,
                             [&] { return log_->advance(event, std::move(record)); });
}

/// The last check: the stopped process still exists, and nobody has cancelled.
awaitable<Status> Source::check_before_commit() {
  co_return co_await offload(context_.blocking, [&]() -> Status {
    GCR_TRY(context_.cancellation.check());
    GCR_TRY(check());
    if (!handle_->is_ending()) return {};
    return Error(Code::kNotFound, "the process ended while it was moved");
  });
}

awaitable<Status> Source::commit() {
  const Phases::Timer timer(phases_, "course", "commit");
  journal::Record record;
  record.mutable_committed();
  const Status decided = co_await note(commit::SourceEvent::kVoteReceived, std::move(record));
  if (!decided && decided.error().code() == Code::kDataLoss) {
    // The journal's content is unknown: act as if killed here (recovery reads the journal again).
    report_.set_recovering(true);
    co_return decided;
  }
  if (!decided) co_return co_await give_up(decided.error());
  // From here on the source's copy never runs again, unless the destination answers CopyLost.
  report_.set_committed(true);
  auto reply = co_await order_commit();
  report_.set_downtime_ms(
      Phases::milliseconds(undone_closings_ + (Phases::Clock::now() - *gate_closed_at_)));
  if (!reply) {
    co_return reply.error().while_doing(
        "the commit was sent but not confirmed; the agent keeps asking, and the stopped process "
        "is kept at the source");
  }
  const bool lost = reply->has_copy_lost();
  const Status settled = co_await offload(context_.blocking, [&] {
    const Phases::Timer settling(phases_, "process", lost ? "take back" : "release source");
    const recovery::InHand hand = in_hand();
    return settlement::settle(*log_, context_.config, *reply, &hand);
  });
  if (lost) {
    // If the journal cannot be written, recovery asks again and gets the same answer.
    report_.set_committed(log_->state() == commit::SourceState::kCommitted);
    if (report_.committed()) co_return settled;
    co_return went_back(settlement::copy_lost(reply->copy_lost()), settled);
  }
  const pid_t pid = reply->commit_reply().pid();
  report_.set_destination_pid(pid);
  if (!settled) report_.add_notes("at the source: " + settled.error().message());
  co_await remember();
  tell("commit", fmt::format("process {} runs at {}", pid, destination_.to_string()));
  co_return Status();
}

/// For the expected downtime of later migrations.
awaitable<void> Source::remember() {
  const double beside_ms = Phases::milliseconds(control_took_);
  const double overlapped_ms = std::max(beside_ms, Phases::milliseconds(last_round_took_));
  const double closed_ms = report_.downtime_ms() - Phases::milliseconds(undone_closings_);
  const MeasuredDowntime measured{kind_, report_.prefilled(), beside_ms,
                                  std::max(0.0, closed_ms - overlapped_ms)};
  const Status remembered = co_await offload(
      context_.blocking, [&] { return remember_downtime(context_.config.state_dir, measured); });
  if (!remembered) spdlog::warn("{}", remembered.error().message());
}

/// On the migration's connection, and then for a while on new ones; after that recovery goes on.
awaitable<Result<proto::Envelope>> Source::order_commit() {
  const auto until = Phases::Clock::now() + 2 * context_.config.peer_silence();
  proto::Envelope envelope;
  envelope.mutable_commit_request()->set_migration_id(to_bytes(migration_));
  const Status unharmed = fault::point("source.committed");
  if (unharmed) {
    auto reply = co_await peer_->call(envelope);
    if (reply) co_return reply;
  }
  peer_->close();
  settlement::Backoff backoff(context_.io, kCommitPause);
  co_return co_await settlement::deliver_commit(context_, log_->journal(), backoff, until);
}

/// For undoing what was done to the process.
recovery::InHand Source::in_hand() {
  return {.access = process_->access(),
          .driver = driver_,
          .vram = [this]() -> Result<job::MemberDescriptors> {
            GCR_ASSIGN(auto descriptors, vram_->descriptors());
            return job_.split(std::move(descriptors));
          },
          .gated = process_->gated(),
          .detaching = process_->detaching()};
}

/// Records whether the process has ended by itself, besides any other error.
Status Source::look_for_end() {
  if (!handle_) return {};
  bool ended = handle_->is_ending();
  if (!ended && process_ && !process_->is_dumped()) {
    const auto answered = process_->access().look(kDoorPatience);
    ended = !answered && answered.error().code() == Code::kNotFound &&
            handle_->ends_within(kEndPatience);
  }
  report_.set_process_ended(ended);
  return {};
}

/// `cause`, or that the process has ended, if it has.
Error Source::or_its_end(Error cause) const {
  if (!report_.process_ended()) return cause;
  return Error(Code::kNotFound,
               fmt::format("process {} ended by itself before it was moved", request_.pid()));
}

awaitable<Status> Source::give_up(Error cause) {
  if (channel_ != nullptr) channel_->cancel();
  GCR_CO_TRY(co_await offload(context_.blocking, [&] { return look_for_end(); }));
  if (report_.process_ended()) spdlog::info("the process has ended: {}", cause.message());
  cause = or_its_end(std::move(cause));
  Status given_up = cause;
  if (log_) {
    const Status undone = co_await offload(context_.blocking, [&] {
      const recovery::InHand hand = in_hand();
      return settlement::undo(*log_, context_.config, commit::SourceEvent::kFailed,
                              settlement::aborted(cause), &hand);
    });
    given_up = went_back(cause, undone);
  }
  if (peer_ != nullptr) {
    proto::Envelope envelope;
    envelope.mutable_abort_request()->set_reason(cause.message());
    auto aborted = co_await peer_->call(envelope);
    if (!aborted) spdlog::info("no answer to the abort: {}", aborted.error().message());
  }
  co_return given_up;
}

/// After undoing: `cause`, or why there is more to do.
Error Source::went_back(const Error& cause, const Status& undone) {
  if (undone) {
    if (handle_->has_ended()) report_.set_process_ended(true);
    count_undone_closing();
    return or_its_end(cause);
  }
  report_.set_recovering(true);
  return Error(Code::kInternal, fmt::format("{}; and the source could not be resumed yet: {}",
                                            cause.message(), undone.error().message()));
}

awaitable<void> run_source(WorkerContext& context, proto::MigrateRequest request) {
  Source source(context, std::move(request));
  co_await source.run();
}

}  // namespace gcr::agent

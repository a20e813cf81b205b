#include "src/cli/migration.h"

#include <algorithm>
#include <asio/experimental/awaitable_operators.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <csignal>

namespace gcr::cli {
namespace {

using asio::awaitable;
using control::ControlChannel;
using control::printable;
using Clock = std::chrono::steady_clock;

/// A migration takes as long as it takes: a vanished agent is noticed by TCP, not by this.
constexpr std::chrono::milliseconds kNextMessageTimeout = std::chrono::hours(24);
/// Between two questions what became of it; twice as long after each.
constexpr std::chrono::milliseconds kFirstPause = std::chrono::milliseconds(100);
constexpr std::chrono::milliseconds kLongestPause = std::chrono::seconds(5);

}  // namespace

Migration::Migration(asio::io_context& io, const MigrateOptions& options,
                     control::AgentAddress source, MigrationView& view, Leave leave)
    : io_(io),
      options_(options),
      view_(view),
      source_(std::move(source)),
      leave_(std::move(leave)),
      signals_(io, SIGINT, SIGTERM) {}

awaitable<Outcome> Migration::run() {
  using asio::experimental::awaitable_operators::operator||;
  auto ended = co_await (migrate() || heed_signals());
  co_return std::get<0>(std::move(ended));
}

awaitable<Outcome> Migration::migrate() {
  const control::Preface preface{control::ConnectionKind::kControl, {}};
  auto channel =
      co_await ControlChannel::connect(source_.endpoint, preface, source_.tls, source_.silence);
  if (!channel) co_return outcome_of(channel.error(), false);
  channel_ = std::move(*channel);
  asked_ = true;
  proto::Envelope request;
  *request.mutable_migrate_request() = options_.request;
  const Status sent = co_await channel_->send(request);
  if (!sent) co_return outcome_of(sent.error(), false);
  Outcome outcome = co_await follow();
  channel_->close();
  const bool settled =
      outcome.exit_code != ExitCode::kUnknown && outcome.exit_code != ExitCode::kUnconfirmed;
  if (settled || !id_) co_return outcome;
  co_return co_await ask_what_became(std::move(outcome));
}

/// Reads until the report, or a Failure, which an agent sends only before it touches anything.
awaitable<Outcome> Migration::follow() {
  for (;;) {
    const auto message = co_await channel_->receive(kNextMessageTimeout);
    if (!message) co_return outcome_of(message.error(), true);
    if (auto outcome = take(*message)) co_return *std::move(outcome);
  }
}

std::optional<Outcome> Migration::take(const proto::Envelope& message) {
  if (message.has_migrate_report()) return outcome_of(message.migrate_report());
  if (message.has_failure()) {
    const Error failure = control::from_failure(message.failure());
    return outcome_of(failure, failure.code() == Code::kInternal);
  }
  if (message.has_event()) view_.event(message.event().phase(), message.event().text());
  if (message.has_progress()) view_.progress(message.progress());
  if (!message.has_started()) return std::nullopt;
  id_ = to_uuid(message.started().migration_id());
  if (options_.detach) {
    Outcome outcome{.exit_code = ExitCode::kMigrated, .report = {}, .detached = true};
    outcome.report.set_migration_id(message.started().migration_id());
    return outcome;
  }
  view_.started(*id_);
  return std::nullopt;
}

/// Until the source's journal is finished, or there is no more to be hoped for soon.
awaitable<Outcome> Migration::ask_what_became(Outcome lost) {
  const Error why(Code::kUnavailable, printable(lost.report.message()));
  view_.event("status", why.message() + "; asking the agent what became of the migration");
  asio::steady_timer pause(io_);
  auto next_pause = kFirstPause;
  std::optional<Clock::time_point> committed_since;
  for (const auto end = Clock::now() + kOutcomePatience; Clock::now() < end;) {
    const auto source = co_await ask_part(source_, "source");
    if (source) {
      auto outcome = outcome_of(*source, why);
      if (outcome) {
        co_await complete(*outcome);
        co_return *std::move(outcome);
      }
      lost.report.set_committed(source->state() == "committed");
      if (!lost.report.committed()) committed_since.reset();
      if (lost.report.committed() && !committed_since) committed_since = Clock::now();
    } else if (source.error().code() == Code::kNotFound) {
      break;
    }
    if (committed_since && Clock::now() - *committed_since > kConfirmPatience) break;
    pause.expires_after(next_pause);
    next_pause = std::min(2 * next_pause, kLongestPause);
    co_await pause.async_wait(asio::use_awaitable);
  }
  lost.exit_code = ExitCode::kUnknown;
  if (lost.report.committed()) {
    lost.exit_code = ExitCode::kUnconfirmed;
    lost.report.set_message(why.message() +
                            "; it is committed, and the destination has not confirmed it yet");
  }
  co_return lost;
}

awaitable<Result<proto::MigrationStatus>> Migration::ask_part(const control::AgentAddress& agent,
                                                              const char* role) {
  proto::Envelope question;
  question.mutable_status_request()->set_migration_id(to_bytes(*id_));
  const auto answer = co_await control::ask_for_reply(agent, {}, question);
  GCR_CO_TRY(answer);
  for (const proto::MigrationStatus& part : answer->status_reply().migrations()) {
    if (part.role() == role) co_return part;
  }
  co_return Error(Code::kNotFound, "the agent knows nothing of the migration");
}

/// The destination knows under which number the process runs there, if it can be asked from here.
awaitable<void> Migration::complete(Outcome& outcome) {
  if (!outcome.report.migrated()) co_return;
  control::AgentAddress destination = source_;
  destination.endpoint = options_.destination;
  const auto there = co_await ask_part(destination, "destination");
  if (there) outcome.report.set_destination_pid(there->pid());
}

awaitable<void> Migration::heed_signals() {
  std::error_code error;
  co_await signals_.async_wait(asio::redirect_error(asio::use_awaitable, error));
  if (error) co_return;
  if (!asked_) leave_(outcome_of(Error(Code::kCancelled, "cancelled"), false));
  view_.event("cancel", "asking the agent to cancel; press Ctrl-C again to quit at once");
  co_await cancel();
  co_await signals_.async_wait(asio::redirect_error(asio::use_awaitable, error));
  if (!error) leave_(left());
}

/// On the migration's connection, or on a new one once that is lost.
awaitable<void> Migration::cancel() {
  proto::Envelope request;
  request.mutable_cancel_request();
  if (id_) request.mutable_cancel_request()->set_migration_id(to_bytes(*id_));
  const Status sent = co_await channel_->send(request);
  if (sent || !id_) co_return;
  const auto answer = co_await control::ask_for_reply(source_, {}, request);
  if (!answer) view_.event("cancel", answer.error().message());
}

Outcome Migration::left() const {
  Outcome outcome =
      outcome_of(Error(Code::kCancelled, "quit while the agent cancels the migration"), true);
  if (id_) outcome.report.set_migration_id(to_bytes(*id_));
  return outcome;
}

}  // namespace gcr::cli

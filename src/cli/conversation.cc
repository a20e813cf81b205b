#include <algorithm>
#include <asio/co_spawn.hpp>
#include <asio/experimental/awaitable_operators.hpp>
#include <asio/io_context.hpp>
#include <asio/redirect_error.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "src/cli/migration_view.h"

namespace gcr::cli {
namespace {

using asio::awaitable;
using control::AgentAddress;
using control::ControlChannel;
using control::printable;
using Clock = std::chrono::steady_clock;

/// An order has no time limit: TCP detects a vanished agent, not this timeout.
constexpr std::chrono::milliseconds kNextMessageTimeout = std::chrono::hours(24);
/// Pause between two queries about the outcome; doubled after each.
constexpr std::chrono::milliseconds kFirstPause = std::chrono::milliseconds(100);
constexpr std::chrono::milliseconds kLongestPause = std::chrono::seconds(5);
/// How long the agent is queried about the outcome after the connection was lost.
constexpr std::chrono::milliseconds kOutcomePatience = std::chrono::seconds(60);
/// The part of that time in which a destination must confirm a commit.
constexpr std::chrono::milliseconds kConfirmPatience = std::chrono::seconds(10);

/// One order. Belongs to the thread that runs the io_context.
class Conversation {
 public:
  Conversation(asio::io_context& io, const Order& order, AgentAddress agent, MigrationView& view)
      : io_(io),
        order_(order),
        task_(task_of(order)),
        view_(view),
        agent_(std::move(agent)),
        signals_(io, SIGINT, SIGTERM) {}

  /// Runs the order to its end. Call it once.
  awaitable<Outcome> run() {
    using asio::experimental::awaitable_operators::operator||;
    auto ended = co_await (send_and_follow() || handle_signals());
    co_return std::get<0>(std::move(ended));
  }

 private:
  awaitable<Outcome> send_and_follow() {
    const control::Preface preface{control::ConnectionKind::kControl, {}};
    auto channel =
        co_await ControlChannel::connect(agent_.endpoint, preface, agent_.tls, agent_.silence);
    if (!channel) co_return outcome_of(channel.error(), false);
    channel_ = std::move(*channel);
    asked_ = true;
    const Status sent = co_await channel_->send(order_.request);
    if (!sent) co_return outcome_of(sent.error(), false);
    Outcome outcome = co_await follow();
    channel_->close();
    const bool settled =
        outcome.exit_code != ExitCode::kUnknown && outcome.exit_code != ExitCode::kUnconfirmed;
    if (settled || !id_) co_return outcome;
    co_return co_await query_outcome(std::move(outcome));
  }

  /// Reads until the report or a Failure, which an agent sends only before it changes anything.
  awaitable<Outcome> follow() {
    for (;;) {
      const auto message = co_await channel_->receive(kNextMessageTimeout);
      if (!message) co_return outcome_of(message.error(), true);
      if (auto outcome = handle(*message)) co_return *std::move(outcome);
    }
  }

  std::optional<Outcome> handle(const proto::Envelope& message) {
    if (message.has_migrate_report()) return outcome_of(message.migrate_report());
    if (message.has_failure()) {
      const Error failure = control::from_failure(message.failure());
      return outcome_of(failure, failure.code() == Code::kInternal);
    }
    if (message.has_event()) view_.event(message.event().phase(), message.event().text());
    if (message.has_progress()) view_.progress(message.progress());
    if (!message.has_started()) return std::nullopt;
    id_ = to_uuid(message.started().migration_id());
    if (order_.detach) {
      Outcome outcome{.exit_code = ExitCode::kMigrated, .report = {}, .detached = true};
      outcome.report.set_migration_id(message.started().migration_id());
      return outcome;
    }
    view_.started(*id_);
    return std::nullopt;
  }

  /// Queries the agent until its journal is finished or no outcome can be expected soon.
  awaitable<Outcome> query_outcome(Outcome lost) {
    const Error why(Code::kUnavailable, printable(lost.report.message()));
    view_.event("status", why.message() + "; querying the agent for the outcome");
    asio::steady_timer pause(io_);
    auto next_pause = kFirstPause;
    std::optional<Clock::time_point> committed_since;
    for (const auto end = Clock::now() + kOutcomePatience; Clock::now() < end;) {
      const auto part =
          co_await ask_part(agent_, task_ == Task::kRestore ? "destination" : "source");
      if (part) {
        auto outcome = outcome_of(task_, *part, why);
        if (outcome) {
          co_await complete(*outcome);
          co_return *std::move(outcome);
        }
        lost.report.set_committed(part->state() == "committed");
        if (!lost.report.committed()) committed_since.reset();
        if (lost.report.committed() && !committed_since) committed_since = Clock::now();
      } else if (part.error().code() == Code::kNotFound) {
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
      lost.report.set_message(why.message() + "; the migration is committed but not yet confirmed");
    }
    co_return lost;
  }

  /// Queries an agent's part of the migration; kNotFound if it has none.
  awaitable<Result<proto::MigrationStatus>> ask_part(const AgentAddress& agent, const char* role) {
    proto::Envelope question;
    question.mutable_status_request()->set_migration_id(to_bytes(*id_));
    GCR_CO_ASSIGN(const proto::Envelope answer,
                  co_await control::ask_for_reply(agent, {}, question));
    for (const proto::MigrationStatus& part : answer.status_reply().migrations()) {
      if (part.role() == role) co_return part;
    }
    co_return Error(Code::kNotFound, "the agent does not know this migration");
  }

  /// Adds the PID of the process where it runs now, if the agent there can be reached from here.
  awaitable<void> complete(Outcome& outcome) {
    const bool arrives = task_ == Task::kMigration || task_ == Task::kRestore;
    if (!outcome.report.migrated() || !arrives) co_return;
    AgentAddress destination = agent_;
    if (task_ == Task::kMigration) destination.endpoint = order_.destination;
    const auto there = co_await ask_part(destination, "destination");
    if (there) outcome.report.set_destination_pid(there->pid());
  }

  awaitable<void> handle_signals() {
    std::error_code error;
    co_await signals_.async_wait(asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;
    if (!asked_) quit(outcome_of(Error(Code::kCancelled, "cancelled"), false));
    view_.event("cancel", "asking the agent to cancel; press Ctrl-C again to quit at once");
    co_await cancel();
    co_await signals_.async_wait(asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;
    Outcome outcome = outcome_of(Error(Code::kCancelled, "quit while the agent cancels"), true);
    if (id_) outcome.report.set_migration_id(to_bytes(*id_));
    quit(outcome);
  }

  /// Sends the cancel on the order's connection, or on a new one if that is lost.
  awaitable<void> cancel() {
    proto::Envelope request;
    request.mutable_cancel_request();
    if (id_) request.mutable_cancel_request()->set_migration_id(to_bytes(*id_));
    const Status sent = co_await channel_->send(request);
    if (sent || !id_) co_return;
    const auto answer = co_await control::ask_for_reply(agent_, {}, request);
    if (!answer) view_.event("cancel", answer.error().message());
  }

  [[noreturn]] void quit(const Outcome& outcome) {
    std::_Exit(static_cast<int>(show_outcome(view_, task_, outcome)));
  }

  asio::io_context& io_;
  const Order& order_;
  const Task task_;
  MigrationView& view_;
  AgentAddress agent_;
  asio::signal_set signals_;
  std::unique_ptr<ControlChannel> channel_;
  bool asked_ = false;
  std::optional<Uuid> id_;  ///< once the agent has accepted the order
};

}  // namespace

Outcome converse(const Order& order, const AgentAddress& agent, MigrationView& view) {
  asio::io_context io(1);
  Conversation conversation(io, order, agent, view);
  Outcome outcome =
      outcome_of(Error(Code::kInternal, "internal error: unexpected exception"), true);
  asio::co_spawn(io, conversation.run(), [&](const std::exception_ptr& exception, Outcome result) {
    if (!exception) outcome = std::move(result);
  });
  io.run();
  return outcome;
}

}  // namespace gcr::cli

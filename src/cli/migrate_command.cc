#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <asio/experimental/awaitable_operators.hpp>
#include <asio/io_context.hpp>
#include <asio/redirect_error.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <optional>
#include <utility>

#include "src/cli/answer_text.h"
#include "src/cli/migration_view.h"
#include "src/cli/trace.h"
#include "src/control/ask.h"

namespace gcr::cli {
namespace {

using asio::awaitable;
using control::AgentAddress;
using control::ControlChannel;
using control::printable;
using Clock = std::chrono::steady_clock;

/// A migration takes as long as it takes: a vanished agent is noticed by TCP, not by this.
constexpr std::chrono::milliseconds kNextMessageTimeout = std::chrono::hours(24);
/// Between two questions what became of it; twice as long after each.
constexpr std::chrono::milliseconds kFirstPause = std::chrono::milliseconds(100);
constexpr std::chrono::milliseconds kLongestPause = std::chrono::seconds(5);
/// How long the agent is asked what became of the migration after the connection was lost.
constexpr std::chrono::milliseconds kOutcomePatience = std::chrono::seconds(60);
/// The part of that time that a destination gets to confirm a commit.
constexpr std::chrono::milliseconds kConfirmPatience = std::chrono::seconds(10);

ExitCode show_outcome(MigrationView& view, const Outcome& outcome) {
  view.ended(outcome);
  if (outcome.exit_code != ExitCode::kMigrated) complain(error_line(outcome));
  return outcome.exit_code;
}

/// The conversation with the source's agent about one migration: the request, progress, the report;
/// cancelling it on Ctrl-C; and, if the connection is lost, what the agent's journal says later.
/// Belongs to the thread that runs the io_context. While it exists it handles SIGINT and
/// SIGTERM: the first cancels the migration, the second quits.
class Migration {
 public:
  Migration(asio::io_context& io, const MigrateOptions& options, AgentAddress source,
            MigrationView& view)
      : io_(io),
        options_(options),
        view_(view),
        source_(std::move(source)),
        signals_(io, SIGINT, SIGTERM) {}

  /// Runs to the end; with `detach` until the agent has accepted the migration. Call once.
  awaitable<Outcome> run();

 private:
  awaitable<Outcome> migrate();
  awaitable<Outcome> follow();
  std::optional<Outcome> take(const proto::Envelope& message);
  awaitable<Outcome> ask_what_became(Outcome lost);
  /// An agent's part in the migration; kNotFound if it has none.
  awaitable<Result<proto::MigrationStatus>> ask_part(const AgentAddress& agent, const char* role);
  awaitable<void> complete(Outcome& outcome);
  awaitable<void> heed_signals();
  awaitable<void> cancel();
  Outcome left() const;
  [[noreturn]] void leave(const Outcome& outcome);

  asio::io_context& io_;
  const MigrateOptions& options_;
  MigrationView& view_;
  AgentAddress source_;
  asio::signal_set signals_;
  std::unique_ptr<ControlChannel> channel_;
  bool asked_ = false;
  std::optional<Uuid> id_;  ///< once the agent has accepted it
};

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

awaitable<Result<proto::MigrationStatus>> Migration::ask_part(const AgentAddress& agent,
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
  AgentAddress destination = source_;
  destination.endpoint = options_.destination;
  const auto there = co_await ask_part(destination, "destination");
  if (there) outcome.report.set_destination_pid(there->pid());
}

awaitable<void> Migration::heed_signals() {
  std::error_code error;
  co_await signals_.async_wait(asio::redirect_error(asio::use_awaitable, error));
  if (error) co_return;
  if (!asked_) leave(outcome_of(Error(Code::kCancelled, "cancelled"), false));
  view_.event("cancel", "asking the agent to cancel; press Ctrl-C again to quit at once");
  co_await cancel();
  co_await signals_.async_wait(asio::redirect_error(asio::use_awaitable, error));
  if (!error) leave(left());
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

void Migration::leave(const Outcome& outcome) {
  std::_Exit(static_cast<int>(show_outcome(view_, outcome)));
}

/// A file that the command line names cannot be used.
Outcome unusable(const Error& error) {
  Outcome outcome = outcome_of(error, false);
  outcome.exit_code = ExitCode::kUsage;
  return outcome;
}

Outcome run(const MigrateOptions& options, const AgentAddress& source, MigrationView& view) {
  asio::io_context io(1);
  Migration migration(io, options, source, view);
  Outcome outcome =
      outcome_of(Error(Code::kInternal, "internal error: unexpected exception"), true);
  asio::co_spawn(io, migration.run(), [&](const std::exception_ptr& exception, Outcome result) {
    if (!exception) outcome = std::move(result);
  });
  io.run();
  return outcome;
}

/// The operator's own command. What it prints goes to standard error, and its failure changes
/// nothing about the migration.
void run_on_commit(const MigrateOptions& options, const proto::MigrateReport& report) {
  const Uuid id = to_uuid(report.migration_id());
  const std::pair<const char*, std::string> environment[] = {
      {"GCR_SRC", options.source.endpoint.host},
      {"GCR_DST", options.destination.host},
      {"GCR_PID", report.destination_pid() > 0 ? std::to_string(report.destination_pid()) : ""},
      {"GCR_MIGRATION", id.to_string()}};
  for (const auto& [name, value] : environment) ::setenv(name, value.c_str(), 1);
  std::fflush(nullptr);
  const int status = std::system(("exec >&2\n" + options.on_commit).c_str());
  if (status == 0) return;
  const std::string how = status > 0 && WIFSIGNALED(status)
                              ? fmt::format("was ended by signal {}", WTERMSIG(status))
                              : fmt::format("ended with status {}", WEXITSTATUS(status));
  complain(fmt::format("the command of --on-commit {}; the process was migrated", how));
}

}  // namespace

ExitCode migrate(const MigrateOptions& options) {
  const auto view = make_view(options);
  const auto source = with_certificates(options.source);
  if (!source) return show_outcome(*view, unusable(source.error()));
  std::ofstream trace;
  if (!options.trace_path.empty()) {  // opened before anything is touched
    trace.open(options.trace_path, std::ios::binary | std::ios::trunc);
    const Error error = Error::from_errno(errno, "cannot open " + options.trace_path);
    if (!trace) return show_outcome(*view, unusable(error));
  }
  const Outcome outcome = run(options, *source, *view);
  if (trace.is_open()) {
    trace << to_trace(outcome.report) << '\n';
    trace.close();
    const Error error = Error::from_errno(errno, "cannot write the trace to " + options.trace_path);
    if (!trace) complain(printable(error.message()));
  }
  if (!options.on_commit.empty() && outcome.exit_code == ExitCode::kMigrated) {
    run_on_commit(options, outcome.report);
  }
  return show_outcome(*view, outcome);
}

ExitCode preflight(const MigrateOptions& options) {
  auto agent = with_certificates(options.source);
  if (!agent) return fail(ExitCode::kUsage, agent.error().message());
  agent->silence = std::chrono::minutes(2);  // two hosts are looked at, one after the other
  proto::Envelope question;
  *question.mutable_check_request()->mutable_migrate() = options.request;
  const auto answer = ask_and_wait(*agent, question);
  if (!answer) return fail(untouched_exit_code(answer.error().code()), answer.error().message());
  const proto::CheckReply& reply = answer->check_reply();
  fmt::print("{}", options.json ? preflight_json(reply) : preflight_text(reply));
  return is_ready(reply) ? ExitCode::kMigrated : ExitCode::kRefused;
}

}  // namespace gcr::cli

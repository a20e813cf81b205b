#include "src/cli/migrate_command.h"

#include <fmt/format.h>

#include <asio/co_spawn.hpp>
#include <asio/experimental/awaitable_operators.hpp>
#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <optional>

#include "src/cli/agent_request.h"
#include "src/cli/outcome.h"
#include "src/cli/summary.h"
#include "src/cli/trace.h"

namespace gcr::cli {
namespace {

using control::ControlChannel;
using control::printable;

/// A migration takes as long as it takes: a vanished agent is noticed by TCP, not by this.
constexpr std::chrono::milliseconds kNextMessageTimeout = std::chrono::hours(24);
/// For how long, and how often, the agent is asked after contact was lost.
constexpr std::chrono::seconds kAfterwards{60};
constexpr std::chrono::milliseconds kAskAgain{200};

void show(const proto::Event& event) {
  fmt::print("{}: {}\n", printable(event.phase()), printable(event.text()));
  std::fflush(stdout);
}

/// One migration from its request to its end, as this side sees it.
class Migration {
 public:
  Migration(const MigrateOptions& options, std::shared_ptr<asio::ssl::context> tls)
      : options_(options), agent_{options.source, std::move(tls)} {}

  asio::awaitable<Outcome> run();

 private:
  asio::awaitable<Outcome> follow();
  asio::awaitable<Outcome> obey_signals();
  asio::awaitable<Outcome> ask_afterwards(Error lost);
  Outcome detached();

  const MigrateOptions& options_;
  const Agent agent_;
  std::unique_ptr<ControlChannel> channel_;
  std::optional<Uuid> id_;
};

/// Reads Events until the report, or a Failure, which an agent sends only before it touches
/// anything.
asio::awaitable<Outcome> Migration::follow() {
  for (;;) {
    auto message = co_await channel_->receive(kNextMessageTimeout);
    if (!message && id_) co_return co_await ask_afterwards(message.error());
    if (!message) co_return outcome_of(message.error(), true);
    if (message->has_started()) {
      id_ = to_uuid(message->started().migration_id());
      if (options_.detach) co_return detached();
      if (!options_.json) fmt::print("migration {}\n", id_->to_string());
      std::fflush(stdout);
    }
    if (message->has_migrate_report()) {
      const proto::MigrateReport& report = message->migrate_report();
      if (!report.recovering()) co_return outcome_of(report);
      Error unsettled(Code::kInternal, report.message());
      co_return co_await ask_afterwards(std::move(unsettled));
    }
    if (message->has_failure()) {
      const Error failure = control::from_failure(message->failure());
      co_return outcome_of(failure, failure.code() == Code::kInternal);
    }
    if (message->has_event() && !options_.json) show(message->event());
  }
}

/// The first Ctrl-C asks the agent to give the migration up, and its report says what came of it;
/// the second leaves.
asio::awaitable<Outcome> Migration::obey_signals() {
  asio::signal_set signals(co_await asio::this_coro::executor, SIGINT, SIGTERM);
  co_await signals.async_wait(asio::use_awaitable);
  proto::Envelope request;
  request.mutable_cancel_request()->set_migration_id(to_bytes(id_.value_or(Uuid{})));
  const Status asked = co_await channel_->send(request);
  if (asked) fmt::print(stderr, "gcr-migrate: giving the migration up; again to leave at once\n");
  co_await signals.async_wait(asio::use_awaitable);
  const Error left(Code::kCancelled, "left while the migration was being given up");
  co_return outcome_of(left, true);
}

/// Contact is lost, or the agent has yet to settle it: its journal knows, sooner or later.
asio::awaitable<Outcome> Migration::ask_afterwards(Error lost) {
  const auto until = std::chrono::steady_clock::now() + kAfterwards;
  asio::steady_timer pause(co_await asio::this_coro::executor);
  for (;;) {
    proto::Envelope request;
    request.mutable_status_request()->set_migration_id(to_bytes(*id_));
    const auto reply = co_await ask(agent_, std::move(request));
    if (reply) {
      for (const proto::MigrationStatus& status : reply->status_reply().migrations()) {
        if (status.role() == "source" && status.finished()) co_return outcome_of(status);
      }
    }
    if (std::chrono::steady_clock::now() > until) co_return outcome_of(lost, true);
    pause.expires_after(kAskAgain);
    co_await pause.async_wait(asio::use_awaitable);
  }
}

/// It goes on without us.
Outcome Migration::detached() {
  Outcome outcome;
  outcome.exit_code = ExitCode::kMigrated;
  outcome.report.set_migration_id(to_bytes(*id_));
  return outcome;
}

proto::Envelope request_of(const MigrateOptions& options) {
  proto::Envelope message;
  proto::MigrateRequest& request = *message.mutable_migrate_request();
  request.set_pid(options.pid);
  request.set_destination(options.destination.to_string());
  request.set_lanes(options.lanes);
  request.set_downtime_limit_ms(options.downtime_limit_ms);
  request.set_max_rounds(options.max_rounds);
  request.set_max_bandwidth_bytes(options.max_bandwidth_bytes);
  request.set_auto_converge(options.auto_converge);
  request.set_strict(options.strict);
  request.set_no_prefill(options.no_prefill);
  request.set_compression(options.compression);
  request.set_image_mode(options.image_mode);
  return message;
}

asio::awaitable<Outcome> Migration::run() {
  using asio::experimental::awaitable_operators::operator||;
  control::Preface preface;
  preface.kind = control::ConnectionKind::kControl;
  auto channel =
      co_await ControlChannel::connect(options_.source, preface, agent_.tls, kConnectTimeout);
  if (!channel) co_return outcome_of(channel.error(), false);
  channel_ = std::move(*channel);
  const Status sent = co_await channel_->send(request_of(options_));
  if (!sent) co_return outcome_of(sent.error(), false);
  auto ended = co_await (follow() || obey_signals());
  channel_->close();
  co_return std::visit([](Outcome& outcome) { return std::move(outcome); }, ended);
}

int show_outcome(const MigrateOptions& options, const Outcome& outcome) {
  if (options.detach && outcome.exit_code == ExitCode::kMigrated) {
    const std::string id = to_uuid(outcome.report.migration_id()).to_string();
    fmt::print("migration {}\n", id);
  } else if (options.json) {
    fmt::print("{}\n", to_json(outcome.report));
  } else if (outcome.exit_code == ExitCode::kMigrated) {
    fmt::print("{}", summary(options, outcome.report));
  }
  std::fflush(stdout);
  if (outcome.exit_code != ExitCode::kMigrated) {
    fmt::print(stderr, "gcr-migrate: {}\n", error_line(outcome));
  }
  return static_cast<int>(outcome.exit_code);
}

/// A file that the command line names cannot be used.
Outcome unusable(const Error& error) {
  Outcome outcome = outcome_of(error, false);
  outcome.exit_code = ExitCode::kUsage;
  return outcome;
}

Outcome run_migration(const MigrateOptions& options,
                      const std::shared_ptr<asio::ssl::context>& tls) {
  asio::io_context io(1);
  Outcome outcome;
  std::exception_ptr broken;
  Migration migration(options, tls);
  asio::co_spawn(io, migration.run(), [&](std::exception_ptr exception, Outcome result) {
    broken = exception;
    outcome = std::move(result);
  });
  io.run();
  if (broken) return outcome_of(Error(Code::kInternal, "gcr-migrate failed where it cannot"), true);
  return outcome;
}

}  // namespace

int migrate_command(const MigrateOptions& options) {
  auto tls = control::make_tls_context(options.tls);
  if (!tls) return show_outcome(options, unusable(tls.error()));
  std::optional<TraceFile> trace;
  if (!options.trace_path.empty()) {
    auto file = TraceFile::open(options.trace_path);
    if (!file) return show_outcome(options, unusable(file.error()));
    trace = *std::move(file);
  }
  const Outcome outcome = run_migration(options, *tls);
  if (trace) {
    const Status written = trace->write(outcome.report);
    if (!written) fmt::print(stderr, "gcr-migrate: {}\n", written.error().message());
  }
  return show_outcome(options, outcome);
}

}  // namespace gcr::cli

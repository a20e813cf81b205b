#include "src/cli/migrate_command.h"

#include <fmt/format.h>

#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <cstdio>
#include <exception>
#include <optional>

#include "src/cli/outcome.h"
#include "src/cli/summary.h"
#include "src/cli/trace.h"

namespace gcr::cli {
namespace {

using control::ControlChannel;
using control::printable;

constexpr std::chrono::milliseconds kConnectTimeout = std::chrono::seconds(10);
/// A migration takes as long as it takes: a vanished agent is noticed by TCP, not by this.
constexpr std::chrono::milliseconds kNextMessageTimeout = std::chrono::hours(24);

void show(const proto::Event& event) {
  fmt::print("{}: {}\n", printable(event.phase()), printable(event.text()));
  std::fflush(stdout);
}

/// Reads Events until the report, or a Failure, which an agent sends only before it touches
/// anything.
asio::awaitable<Outcome> follow(ControlChannel& channel, bool json) {
  for (;;) {
    auto message = co_await channel.receive(kNextMessageTimeout);
    if (!message) co_return outcome_of(message.error(), true);
    if (message->has_migrate_report()) co_return outcome_of(message->migrate_report());
    if (message->has_failure()) {
      const Error failure = control::from_failure(message->failure());
      co_return outcome_of(failure, failure.code() == Code::kInternal);
    }
    if (message->has_event() && !json) show(message->event());
  }
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

asio::awaitable<Outcome> migrate(const MigrateOptions& options,
                                 std::shared_ptr<asio::ssl::context> tls) {
  control::Preface preface;
  preface.kind = control::ConnectionKind::kControl;
  auto channel = co_await ControlChannel::connect(options.source, preface, tls, kConnectTimeout);
  if (!channel) co_return outcome_of(channel.error(), false);
  const Status sent = co_await (*channel)->send(request_of(options));
  if (!sent) co_return outcome_of(sent.error(), false);
  Outcome outcome = co_await follow(**channel, options.json);
  (*channel)->close();
  co_return outcome;
}

int show_outcome(const MigrateOptions& options, const Outcome& outcome) {
  if (options.json) {
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
  asio::co_spawn(io, migrate(options, tls), [&](std::exception_ptr exception, Outcome result) {
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

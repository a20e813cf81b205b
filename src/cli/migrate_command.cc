#include <fmt/format.h>

#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <utility>

#include "src/cli/answer_text.h"
#include "src/cli/migration.h"
#include "src/cli/trace.h"
#include "src/control/wire.h"

namespace gcr::cli {
namespace {

ExitCode show_outcome(MigrationView& view, const Outcome& outcome) {
  view.ended(outcome);
  if (outcome.exit_code != ExitCode::kMigrated) complain(error_line(outcome));
  return outcome.exit_code;
}

/// A file that the command line names cannot be used.
Outcome unusable(const Error& error) {
  Outcome outcome = outcome_of(error, false);
  outcome.exit_code = ExitCode::kUsage;
  return outcome;
}

Outcome run_migration(const MigrateOptions& options, const control::AgentAddress& source,
                      MigrationView& view) {
  asio::io_context io(1);
  Migration migration(io, options, source, view, [&view](const Outcome& outcome) {
    std::_Exit(static_cast<int>(show_outcome(view, outcome)));
  });
  Outcome outcome =
      outcome_of(Error(Code::kInternal, "internal error: unexpected exception"), true);
  asio::co_spawn(io, migration.run(), [&](const std::exception_ptr& exception, Outcome result) {
    if (!exception) outcome = std::move(result);
  });
  io.run();
  return outcome;
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
  const Outcome outcome = run_migration(options, *source, *view);
  if (trace.is_open()) {
    trace << to_trace(outcome.report) << '\n';
    trace.close();
    const Error error = Error::from_errno(errno, "cannot write the trace to " + options.trace_path);
    if (!trace) complain(control::printable(error.message()));
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

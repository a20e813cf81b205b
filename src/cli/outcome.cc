#include "src/cli/outcome.h"

#include <fmt/format.h>

#include "src/control/wire.h"

namespace gcr::cli {
namespace {

using control::printable;

Code code_of(const std::string& name) {
  proto::Failure failure;
  failure.set_code(name);
  return control::from_failure(failure).code();
}

/// What the reader most wants to know after an error: whether the process still runs, and where.
std::string_view consequence(ExitCode exit_code) {
  switch (exit_code) {
    case ExitCode::kFailed:
    case ExitCode::kCancelled:
      return "; the process runs on at the source";
    case ExitCode::kEnded:
      return "; it runs nowhere";
    case ExitCode::kUnknown:
      return "; the outcome is not known here: ask both agents (`gcr-migrate status`) before "
             "starting anything";
    case ExitCode::kUnconfirmed:
      return "; the process will not run at the source again: the agents go on until the "
             "destination confirms (`gcr-migrate status`)";
    default:
      return "";
  }
}

}  // namespace

ExitCode untouched_exit_code(Code code) {
  switch (code) {
    case Code::kUnavailable:
    case Code::kTimeout:
      return ExitCode::kUnreachable;
    case Code::kPermissionDenied:
      return ExitCode::kNotAuthorised;
    case Code::kCancelled:
      return ExitCode::kCancelled;
    default:
      return ExitCode::kRefused;
  }
}

void complain(const std::string& what) { fmt::print(stderr, "gcr-migrate: {}\n", what); }

ExitCode fail(ExitCode exit_code, const std::string& what) {
  complain(printable(what));
  return exit_code;
}

ExitCode wrong_usage(const std::string& what) {
  return fail(ExitCode::kUsage, what + " (see --help)");
}

Outcome outcome_of(proto::MigrateReport report) {
  Outcome outcome;
  const Code code = code_of(report.code());
  if (report.migrated()) {
    outcome.exit_code = ExitCode::kMigrated;
  } else if (report.committed()) {
    outcome.exit_code = ExitCode::kUnconfirmed;
  } else if (report.recovering()) {
    outcome.exit_code = ExitCode::kUnknown;
  } else if (report.process_ended()) {
    outcome.exit_code = ExitCode::kEnded;
  } else if (report.source_touched() && code != Code::kCancelled) {
    outcome.exit_code = ExitCode::kFailed;
  } else {
    outcome.exit_code = untouched_exit_code(code);
  }
  outcome.report = std::move(report);
  return outcome;
}

Outcome outcome_of(const Error& error, bool asked) {
  Outcome outcome;
  outcome.exit_code = asked ? ExitCode::kUnknown : untouched_exit_code(error.code());
  outcome.report.set_source_touched(asked);
  outcome.report.set_code(std::string(to_string(error.code())));
  outcome.report.set_message(error.message());
  return outcome;
}

std::optional<Outcome> outcome_of(const proto::MigrationStatus& source, const Error& lost) {
  if (!source.finished()) return std::nullopt;
  Outcome outcome;
  outcome.from_journal = true;
  outcome.report.set_migration_id(source.migration_id());
  outcome.report.set_source_touched(true);
  outcome.report.set_migrated(source.state() == "confirmed");
  outcome.report.set_committed(outcome.report.migrated());
  outcome.report.add_notes(fmt::format(
      "known from the source agent's journal; the report was lost: {}", lost.message()));
  if (outcome.report.migrated()) {
    outcome.exit_code = ExitCode::kMigrated;
    return outcome;
  }
  outcome.report.set_code(source.code());
  outcome.report.set_process_ended(source.pid() == 0);
  const bool cancelled = code_of(source.code()) == Code::kCancelled;
  outcome.exit_code = outcome.report.process_ended() ? ExitCode::kEnded
                      : cancelled                    ? ExitCode::kCancelled
                                                     : ExitCode::kFailed;
  outcome.report.set_message(
      fmt::format("{} (as the source agent's journal says: {})",
                  source.message().empty() ? "it was undone" : source.message(), lost.message()));
  return outcome;
}

std::string error_line(const Outcome& outcome) {
  return printable(outcome.report.message()) + std::string(consequence(outcome.exit_code));
}

}  // namespace gcr::cli

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

/// Returns what the operator most needs to know after an error: whether the process still runs, and
/// where.
std::string_view after_migration(ExitCode exit_code) {
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
      return "; the process will not run at the source again: the agents retry until the "
             "destination confirms (`gcr-migrate status`)";
    default:
      return "";
  }
}

std::string_view after_checkpoint(ExitCode exit_code) {
  switch (exit_code) {
    case ExitCode::kFailed:
    case ExitCode::kCancelled:
      return "; the process runs on, and there is no new checkpoint";
    case ExitCode::kEnded:
      return "; there is no new checkpoint";
    case ExitCode::kUnknown:
      return "; whether there is a new checkpoint is not known here: ask the agent "
             "(`gcr-migrate status`)";
    case ExitCode::kUnconfirmed:
      return "; the agent retries until the checkpoint is complete (`gcr-migrate status`)";
    default:
      return "";
  }
}

std::string_view after_restore(ExitCode exit_code) {
  switch (exit_code) {
    case ExitCode::kFailed:
    case ExitCode::kCancelled:
      return "; nothing was restored";
    case ExitCode::kEnded:
      return "; it runs nowhere";
    case ExitCode::kUnknown:
      return "; the outcome is not known here: ask the agent (`gcr-migrate status`) before "
             "starting anything";
    case ExitCode::kUnconfirmed:
      return "; the agent retries until the process runs (`gcr-migrate status`)";
    default:
      return "";
  }
}

std::string_view after_suspension(Task task, ExitCode exit_code) {
  switch (exit_code) {
    case ExitCode::kFailed:
    case ExitCode::kCancelled:
      return task == Task::kSuspend ? "; the process runs on" : "";
    case ExitCode::kEnded:
      return "; it runs nowhere";
    case ExitCode::kUnknown:
      return "; the outcome is not known here: ask the agent (`gcr-migrate list`)";
    default:
      return "";
  }
}

std::string_view consequence(Task task, ExitCode exit_code) {
  switch (task) {
    case Task::kCheckpoint:
      return after_checkpoint(exit_code);
    case Task::kRestore:
      return after_restore(exit_code);
    case Task::kSuspend:
    case Task::kResume:
      return after_suspension(task, exit_code);
    default:
      return after_migration(exit_code);
  }
}

/// Returns the last state of a journal after success (migrate-agent/commit/states/states.h).
std::string_view success_of(Task task) {
  switch (task) {
    case Task::kRestore:
      return "running";
    case Task::kSuspend:
      return "suspended";
    case Task::kResume:
      return "resumed";
    default:
      return "confirmed";
  }
}

}  // namespace

std::string_view to_string(Task task) {
  switch (task) {
    case Task::kCheckpoint:
      return "checkpoint";
    case Task::kRestore:
      return "restore";
    case Task::kSuspend:
      return "suspend";
    case Task::kResume:
      return "resume";
    default:
      return "migration";
  }
}

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
  if (report.migrated() || report.suspension().done()) {
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

std::optional<Outcome> outcome_of(Task task, const proto::MigrationStatus& status,
                                  const Error& lost) {
  const bool succeeded = status.state() == success_of(task);
  // The worker that resumed the job is dead, and no other one does.
  const bool stays =
      task == Task::kResume && status.state() == "suspended" && status.phase().empty();
  if (!status.finished() && !succeeded && !stays) return std::nullopt;
  Outcome outcome;
  outcome.from_journal = true;
  proto::MigrateReport& report = outcome.report;
  report.set_migration_id(status.migration_id());
  report.set_source_touched(true);
  report.set_start_time(status.start_time());
  report.set_suspended(status.moves_suspended());
  report.set_migrated(succeeded);
  report.set_committed(report.migrated());
  report.add_notes(
      fmt::format("known from the agent's journal; the report was lost: {}", lost.message()));
  if (report.migrated()) {
    outcome.exit_code = ExitCode::kMigrated;
    return outcome;
  }
  report.set_code(status.code());
  report.set_process_ended(task != Task::kRestore && status.pid() == 0);
  const bool cancelled = code_of(status.code()) == Code::kCancelled;
  outcome.exit_code = report.process_ended() ? ExitCode::kEnded
                      : cancelled            ? ExitCode::kCancelled
                                             : ExitCode::kFailed;
  const std::string what = stays                      ? "the job stays suspended"
                           : status.message().empty() ? "it was rolled back"
                                                      : status.message();
  report.set_message(fmt::format("{} (from the agent's journal: {})", what, lost.message()));
  return outcome;
}

std::string error_line(Task task, const Outcome& outcome) {
  if (outcome.report.suspended() && !outcome.report.committed()) {
    return printable(outcome.report.message()) + "; the job is suspended, as before";
  }
  return printable(outcome.report.message()) + std::string(consequence(task, outcome.exit_code));
}

}  // namespace gcr::cli

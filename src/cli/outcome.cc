#include "src/cli/outcome.h"

#include <fmt/format.h>

#include <array>

#include "src/control/wire.h"

namespace gcr::cli {
namespace {

using control::code_of;
using control::printable;

/// What differs between the kinds of orders.
struct TaskTexts {
  std::string_view name;
  std::string_view success;  ///< the journal's last state (migrate-agent/commit/states/states.h)
  // What the operator most needs to know after an error: whether the process still runs, and where.
  std::string_view failed;  ///< or cancelled
  std::string_view ended;
  std::string_view unknown;
  std::string_view unconfirmed;
};

constexpr std::string_view kRunsNowhere = "; it runs nowhere";
constexpr std::string_view kAskForList =
    "; the outcome is not known here: ask the agent (`gcr-migrate list`)";

/// By Task.
constexpr std::array kTasks{
    TaskTexts{"migration", "confirmed", "; the process runs on at the source", kRunsNowhere,
              "; the outcome is not known here: ask both agents (`gcr-migrate status`) before "
              "starting anything",
              "; the process will not run at the source again: the agents retry until the "
              "destination confirms (`gcr-migrate status`)"},
    TaskTexts{"checkpoint", "confirmed", "; the process runs on, and there is no new checkpoint",
              "; there is no new checkpoint",
              "; whether there is a new checkpoint is not known here: ask the agent "
              "(`gcr-migrate status`)",
              "; the agent retries until the checkpoint is complete (`gcr-migrate status`)"},
    TaskTexts{"restore", "running", "; nothing was restored", kRunsNowhere,
              "; the outcome is not known here: ask the agent (`gcr-migrate status`) before "
              "starting anything",
              "; the agent retries until the process runs (`gcr-migrate status`)"},
    TaskTexts{"suspend", "suspended", "; the process runs on", kRunsNowhere, kAskForList, ""},
    TaskTexts{"resume", "resumed", "", kRunsNowhere, kAskForList, ""}};

const TaskTexts& texts_of(Task task) { return kTasks.at(static_cast<std::size_t>(task)); }

std::string_view consequence(Task task, ExitCode exit_code) {
  const TaskTexts& texts = texts_of(task);
  switch (exit_code) {
    case ExitCode::kFailed:
    case ExitCode::kCancelled:
      return texts.failed;
    case ExitCode::kEnded:
      return texts.ended;
    case ExitCode::kUnknown:
      return texts.unknown;
    case ExitCode::kUnconfirmed:
      return texts.unconfirmed;
    default:
      return "";
  }
}

}  // namespace

std::string_view to_string(Task task) { return texts_of(task).name; }

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
  const bool succeeded = status.state() == texts_of(task).success;
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

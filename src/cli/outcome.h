// The exit statuses of gcr-migrate, and the outcome of an order, for people and scripts.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::cli {

/// docs/exit-codes.md and --help (migrate_options.cc) describe each status; a test compares the
/// two.
enum class ExitCode : int {
  kMigrated = 0,  ///< of other commands: done
  kFailed = 1,
  kUsage = 2,
  kRefused = 3,
  kUnreachable = 4,
  kNotAuthorised = 5,
  kUnknown = 6,
  kCancelled = 7,
  kUnconfirmed = 8,
  kEnded = 9,
  // of `gcr-migrate run`, if the command could not be started; like env(1) and timeout(1)
  kRunOwnFailure = 125,
  kRunNotExecutable = 126,
  kRunNotFound = 127,
};

/// The kinds of orders.
enum class Task { kMigration, kCheckpoint, kRestore, kSuspend, kResume };

/// Returns "migration", "checkpoint", "restore", "suspend" or "resume".
std::string_view to_string(Task task);

/// Returns the exit status for an error that occurred before anything was changed.
ExitCode untouched_exit_code(Code code);

/// Prints an error on standard error. `what` must be printable (src/control/wire.h).
void complain(const std::string& what);

/// Prints any text as an error and returns `exit_code`.
ExitCode fail(ExitCode exit_code, const std::string& what);

/// Prints an error about the command line and returns kUsage.
ExitCode wrong_usage(const std::string& what);

/// The end of an order, with its report. If no agent sent a report, it is made up here.
struct Outcome {
  ExitCode exit_code = ExitCode::kFailed;
  proto::MigrateReport report;
  bool detached = false;      ///< the agents continue: only the report's id is valid
  bool from_journal = false;  ///< the report was lost: this one has what the agents' journals say
};

/// Returns the outcome that an agent reported.
Outcome outcome_of(proto::MigrateReport report);

/// Returns the outcome for an error without a report, before (`asked` false) or after the request
/// was sent.
Outcome outcome_of(const Error& error, bool asked);

/// Returns the outcome from the agent's journal after the report was lost because of `lost`; none
/// while the journal is unfinished.
std::optional<Outcome> outcome_of(Task task, const proto::MigrationStatus& status,
                                  const Error& lost);

/// Returns one sentence: the error, and the state of the process.
std::string error_line(Task task, const Outcome& outcome);

}  // namespace gcr::cli

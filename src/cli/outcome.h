// How gcr-migrate ends: the exit statuses, and the outcome of an order, for people and scripts.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::cli {

/// docs/exit-codes.md and --help (migrate_options.cc) say what each means; a test compares the two.
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
  // Of `gcr-migrate run`, if the command could not be started; as for env(1) and timeout(1).
  kRunOwnFailure = 125,
  kRunNotExecutable = 126,
  kRunNotFound = 127,
};

/// What an agent is asked to do to a job.
enum class Task { kMigration, kCheckpoint, kRestore, kSuspend, kResume };

/// "migration", "checkpoint", "restore", "suspend", "resume".
std::string_view to_string(Task task);

/// For an error that came before anything was touched.
ExitCode untouched_exit_code(Code code);

/// Says on standard error what went wrong. `what` is printable (src/control/wire.h).
void complain(const std::string& what);

/// The same of any text; gives `exit_code` back.
ExitCode fail(ExitCode exit_code, const std::string& what);

/// The same if the command line is wrong.
ExitCode wrong_usage(const std::string& what);

/// How the order ended, with its report. If no agent sent one, it is made here.
struct Outcome {
  ExitCode exit_code = ExitCode::kFailed;
  proto::MigrateReport report;
  bool detached = false;      ///< the agents go on: only the report's id is valid
  bool from_journal = false;  ///< the report was lost: it says what the agents' journals say
};

/// From the agent's report.
Outcome outcome_of(proto::MigrateReport report);

/// From an error without a report, before (`asked` false) or after the request was sent.
Outcome outcome_of(const Error& error, bool asked);

/// From the journal of the agent that was asked, after its report was lost: `lost` is why. Nothing
/// as long as the journal is unfinished.
std::optional<Outcome> outcome_of(Task task, const proto::MigrationStatus& status,
                                  const Error& lost);

/// One sentence: the error, and what became of the process.
std::string error_line(Task task, const Outcome& outcome);

}  // namespace gcr::cli

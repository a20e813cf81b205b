// The outcome of a migration, for people, for scripts, and as an exit status.
#pragma once

#include <optional>
#include <string>

#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/cli/exit_code.h"
#include "src/control/control_channel.h"

namespace gcr::cli {

/// How the migration ended, with its report. If no agent sent one, it is made here.
struct Outcome {
  ExitCode exit_code = ExitCode::kFailed;
  proto::MigrateReport report;
  bool detached = false;      ///< the migration goes on: only the report's id is valid
  bool from_journal = false;  ///< the report was lost: it says what the agents' journals say
};

/// From the source agent's report.
Outcome outcome_of(proto::MigrateReport report);

/// From an error without a report, before (`asked` false) or after the request was sent.
Outcome outcome_of(const Error& error, bool asked);

/// From the source agent's journal, after its report was lost: `lost` is why. Nothing as long as
/// the journal is unfinished.
std::optional<Outcome> outcome_of(const proto::MigrationStatus& source, const Error& lost);

/// One sentence: the error, and what became of the process.
std::string error_line(const Outcome& outcome);

}  // namespace gcr::cli

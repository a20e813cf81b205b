// What became of a migration, for people, for scripts, and as an exit status.
#pragma once

#include <string>

#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/cli/exit_code.h"
#include "src/control/control_channel.h"

namespace gcr::cli {

/// How the migration ended, with the report that says so. Where no agent sent one, it is made here.
struct Outcome {
  ExitCode exit_code = ExitCode::kFailed;
  proto::MigrateReport report;
};

/// From the source agent's report.
Outcome outcome_of(proto::MigrateReport report);

/// From an error without a report, before (`asked` false) or after the request was sent.
Outcome outcome_of(const Error& error, bool asked);

/// The report as one JSON object, every field present; 64-bit numbers are strings, as Protobuf's
/// JSON mapping has them.
std::string to_json(const proto::MigrateReport& report);

/// One sentence: what went wrong, and what has become of the process.
std::string error_line(const Outcome& outcome);

}  // namespace gcr::cli

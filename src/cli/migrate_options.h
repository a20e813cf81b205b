// What the command line says of a migration, or of its preflight alone.
#pragma once

#include <string>

#include "proto/control.pb.h"
#include "src/cli/agents.h"
#include "src/cli/outcome.h"

namespace gcr::cli {

struct MigrateOptions {
  NamedAgent source;
  control::Endpoint destination;
  proto::MigrateRequest request;
  std::string on_commit;   ///< for sh -c; empty: none
  bool detach = false;     ///< quit as soon as the migration has an id
  std::string trace_path;  ///< empty: no trace is written
  bool json = false;
  bool quiet = false;
};

/// Runs to the migration's end. What happens and the summary go to standard output
/// (migration_view.h), an error to standard error as one line.
ExitCode migrate(const MigrateOptions& options);

/// Asks the agent at SRC, which asks the one at DST, what prevents the migration, and prints the
/// answer: kMigrated if nothing does, kRefused if something does.
ExitCode preflight(const MigrateOptions& options);

}  // namespace gcr::cli

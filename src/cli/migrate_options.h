// The command lines of a migration and of its preflight alone.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "src/base/result.h"
#include "src/cli/options.h"

namespace gcr::cli {

/// The command line as CLI11 reads it; text fields are those that CLI11 cannot check.
struct RawMigrate {
  std::string source;
  std::string destination;
  std::string pid;
  MigrateOptions options;
};

/// `gcr-migrate SRC DST PID`, on the main command.
void describe_migrate(CLI::App& app, RawMigrate& raw);

/// `gcr-migrate preflight SRC DST PID`.
CLI::App* describe_preflight(CLI::App& app, RawMigrate& raw);

/// kInvalidArgument says what is wrong.
Result<MigrateOptions> check(const RawMigrate& raw);

}  // namespace gcr::cli

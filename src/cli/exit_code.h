// The exit statuses of gcr-migrate. exit_codes() is the only table: --help prints
// it, and a test compares the documentation with it.
#pragma once

#include <span>
#include <string>

#include "src/base/result.h"

namespace gcr::cli {

enum class ExitCode : int {
  kMigrated = 0,
  kFailed = 1,
  kUsage = 2,
  kRefused = 3,
  kUnreachable = 4,
  kNotAuthorised = 5,
  kUnknown = 6,
  kCancelled = 7,
  kUnconfirmed = 8,
  kEnded = 9,
};

struct ExitCodeRow {
  ExitCode code;
  const char* name;     ///< one word
  const char* meaning;  ///< one clause
};

/// Every exit status of migrations and of the questions to agents, in order.
std::span<const ExitCodeRow> exit_codes();

/// The same for --help, a line each.
std::string exit_code_table();

/// For an error that came before anything was touched.
ExitCode untouched_exit_code(Code code);

/// Says on standard error what went wrong, and gives the exit status.
int fail(ExitCode exit_code, const Error& error);

/// Of `gcr-migrate run`, if the command could not be started; as for env(1) and timeout(1).
inline constexpr int kRunOwnFailure = 125;
inline constexpr int kRunNotExecutable = 126;
inline constexpr int kRunNotFound = 127;

}  // namespace gcr::cli

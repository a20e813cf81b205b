// What gcr-migrate tells scripts by its exit status. --help prints the same table.
#pragma once

#include "src/base/result.h"

namespace gcr::cli {

enum class ExitCode : int {
  kMigrated = 0,     ///< or what was asked for was done
  kFailed = 1,       ///< the migration failed; the source runs on
  kUsage = 2,        ///< the command line or a file that it names is wrong
  kRefused = 3,      ///< refused before anything was touched
  kUnreachable = 4,  ///< an agent cannot be reached; nothing was touched
  kNotAuthorised =
      5,           ///< a certificate or the process's owner does not allow it; nothing was touched
  kUnknown = 6,    ///< not known here: the agents settle it, `gcr-migrate status` tells
  kCancelled = 7,  ///< cancelled; the process runs on at the source
};

/// For an error that came before anything was touched.
ExitCode untouched_exit_code(Code code);

/// Of `gcr-migrate run`, where the command could not be started; as env(1) and timeout(1) have
/// them.
inline constexpr int kRunOwnFailure = 125;
inline constexpr int kRunNotExecutable = 126;
inline constexpr int kRunNotFound = 127;

}  // namespace gcr::cli

// A command below gcr-supervisor: in its own session, without a terminal, with its output in a
// file. `gcr-migrate run` is its parent while it waits.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::cli {

/// Opens the file for appending; creates it if it does not exist.
Result<UniqueFd> open_output(const std::filesystem::path& path);

/// A command that was started.
struct Supervised {
  pid_t pid = -1;  ///< of its supervisor: the job's root
  int error = 0;   ///< errno, if the command was not executed; then there is no process
};

/// Starts the command below the supervisor and returns once it has been executed or that has
/// failed. Afterwards kPassedOn and SIGCHLD are blocked in this process. The command gets our
/// environment and working directory, default signal handling and only the descriptors of its three
/// streams. Returns an Error if the supervisor fails before.
Result<Supervised> start_supervised(const std::filesystem::path& supervisor,
                                    const std::filesystem::path& output_path,
                                    const UniqueFd& output,
                                    const std::vector<std::string>& command);

/// Waits for the supervisor's end and passes signals on to it meanwhile; returns its status as
/// waitpid(2) does.
int await_supervised(pid_t supervisor);

}  // namespace gcr::cli

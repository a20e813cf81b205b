// A command below gcr-supervisor: in a session of its own, without terminal, with its output in a
// file. `gcr-migrate run` is its parent as long as it waits.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::cli {

/// Opens the file to append to it; made if it is not there.
Result<UniqueFd> open_output(const std::filesystem::path& path);

/// A command that was started.
struct Supervised {
  pid_t pid = -1;  ///< of its supervisor: the job's root
  int error = 0;   ///< errno, if the command was not executed; then there is no process
};

/// Returns once the command is executed, or cannot be. From then on kPassedOn and SIGCHLD are
/// blocked in this process. The command gets our environment and working directory, default signal
/// handling and no descriptors but its three streams. An Error if the supervisor fails before.
Result<Supervised> start_supervised(const std::filesystem::path& supervisor,
                                    const std::filesystem::path& output_path,
                                    const UniqueFd& output,
                                    const std::vector<std::string>& command);

/// Waits for its end and passes signals on to it meanwhile; gives its status as waitpid(2) does.
int await_supervised(pid_t supervisor);

}  // namespace gcr::cli

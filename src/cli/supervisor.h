// The interface between `gcr-migrate run --output` and gcr-supervisor.
#pragma once

#include <signal.h>

namespace gcr::cli {

/// Descriptor of the write end of a pipe in the supervisor, besides /dev/null as its standard input
/// and the output file as its other two streams. It has no other descriptors.
inline constexpr int kStartedFd = 3;

/// Sent through that pipe if the command was not executed. If it was, the pipe is closed empty.
struct NotStarted {
  bool command_found;  ///< false: a step before the command's execution failed
  int error;           ///< errno
};

/// Signals that `gcr-migrate run` passes on to the supervisor. The supervisor reopens its output
/// file on SIGHUP and passes all others on to the command.
inline constexpr int kPassedOn[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

}  // namespace gcr::cli

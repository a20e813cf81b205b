// What `gcr-migrate run --output` and gcr-supervisor agree on.
#pragma once

#include <signal.h>

namespace gcr::cli {

/// The supervisor finds here the write end of a pipe, besides /dev/null as its standard input and
/// the output file as its other two streams. It has no other descriptors.
inline constexpr int kStartedFd = 3;

/// Comes through that pipe if the command was not executed. If it was, the pipe closes empty.
struct NotStarted {
  bool command_found;  ///< false: something before the command's execution failed
  int error;           ///< errno
};

/// What `gcr-migrate run` passes on to the supervisor. The supervisor opens its output file again
/// on SIGHUP, and passes all others on to the command.
inline constexpr int kPassedOn[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

}  // namespace gcr::cli

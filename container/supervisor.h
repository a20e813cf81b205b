// The supervisor: the child of gcr-init that starts the program. It is the job's root, and moves
// with it. Processes of the job that lose their parent become its children, so the job stays one
// tree.
#pragma once

#include "container/signals.h"

namespace gcr::container {

/// What the program is started with.
struct Program {
  char** words;   ///< null-terminated; the first one is searched for in PATH
  bool terminal;  ///< standard input is a terminal that no session has
};

/// Exit status if gcr-init or the supervisor cannot create a process.
inline constexpr int kOwnFailure = 125;

/// Runs the supervisor in this process, a child of gcr-init, until the program has ended; ends with
/// its status. If the program cannot be started: one line on standard error, and 127 if there is
/// none, else 126.
///
/// Signals from gcr-init and from outside the container are passed on to the program. Those of the
/// container's own processes are not: kill(-1) reaches the program by itself.
[[noreturn]] void supervise(const Program& program, const Signals& signals);

/// Writes "gcr-init: cannot start PROGRAM: REASON" to standard error; the reason is errno's.
void complain(const Program& program);

/// Closes all descriptors but the standard streams.
void close_other_descriptors();

}  // namespace gcr::container

// The ptrace calls that the agent needs. All calls for one traced thread must come from one thread
// of ours.
#pragma once

#include <sys/types.h>

#include <set>

#include "src/base/result.h"

namespace gcr::tracing {

/// Attaches to a thread and asks it to stop for the tracer; a group stop stays in force beneath.
/// `options` are those of PTRACE_SEIZE. kNotFound if the thread has ended; then nothing is
/// attached. On any other failure the thread may still be attached: detach() it.
Status seize(pid_t tid, unsigned long options);

/// Waits until a seized thread is in a ptrace stop. Returns the signal that was about to be
/// delivered, mostly 0; pass it to detach(). kNotFound if the thread has ended.
Result<int> wait_until_stopped(pid_t tid);

/// Calls seize() and wait_until_stopped().
Result<int> stop(pid_t tid, unsigned long options);

/// Detaches from a thread. False with errno set on failure. A thread whose process is stopped shows
/// as running for a moment: see procfs::wait_until_stopped().
bool detach(pid_t tid, int signal_number);

/// Waits at most 2 s for threads that detach() refused with ESRCH: they are being killed, and their
/// process ends only when the tracers of its threads have reaped them.
void reap(std::set<pid_t> dying);

}  // namespace gcr::tracing

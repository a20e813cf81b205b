// The few ptrace calls that are needed. All calls for one traced thread must come from one thread
// of ours.
#pragma once

#include <sys/types.h>

#include <set>

#include "src/base/result.h"

namespace gcr::tracing {

/// Attaches to a thread and asks it to stop for the tracer; a group stop stays in force beneath.
/// `options` are those of PTRACE_SEIZE. kNotFound if the thread has ended; then nothing is
/// attached. On any other failure the thread may still be attached: let_go() it.
Status seize(pid_t tid, unsigned long options);

/// Waits until a seized thread is in a ptrace stop. The value is the signal that was about to be
/// delivered and must be passed to let_go(), mostly 0. kNotFound if it has ended.
Result<int> wait_until_stopped(pid_t tid);

/// Both.
Result<int> stop(pid_t tid, unsigned long options);

/// Detaches. False with errno set on failure. A thread whose process is stopped shows as running
/// for a moment: procfs::wait_until_stopped().
bool let_go(pid_t tid, int signal_number);

/// For a tracer that lives on, and threads that let_go() refused with ESRCH: they are being killed.
/// Waits for them, two seconds at most: a process ends only when the tracers of its threads have.
void reap(std::set<pid_t> dying);

}  // namespace gcr::tracing

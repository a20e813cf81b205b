// The ptrace calls that the agent needs, and the threads that it holds with them. All calls for one
// traced thread must come from one thread of ours.
#pragma once

#include <sys/types.h>

#include <set>

#include "migrate-agent/linux/procfs/process_handle.h"
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

/// Stops all threads of a process except one, which works for the agent. SIGSTOP stops the whole
/// process, and ptrace lets the one thread run all the same. If the agent dies, the kernel puts
/// that thread back into the stop, so its work never runs concurrently with the application's own
/// threads. Belongs to the thread that created it.
class HeldThreads {
 public:
  /// `process` may already be stopped.
  explicit HeldThreads(procfs::Process process) : process_(std::move(process)) {}
  HeldThreads(const HeldThreads&) = delete;
  HeldThreads& operator=(const HeldThreads&) = delete;
  /// Calls release().
  ~HeldThreads();

  /// Stops all threads but `running`, a thread id in the process's own PID namespace. After a
  /// failure release() makes the process run again. kNotFound if there is no such thread,
  /// kPermissionDenied if a thread has another tracer.
  Status hold_all_but(pid_t running);

  /// Continues the whole process (SIGCONT), even if it was stopped before. Idempotent.
  void release();

 private:
  Status seize(pid_t tid);
  Status run(pid_t tid);

  const procfs::Process process_;
  const pid_t pid_ = process_.pid();
  bool stopped_ = false;
  pid_t running_ = 0;       ///< in our PID namespace
  std::set<pid_t> seized_;  ///< all threads, including the running one
};

}  // namespace gcr::tracing

// Stops all threads of a process except one, which works for the agent. SIGSTOP stops the whole
// process, and ptrace lets the one thread run all the same. If the agent dies, the kernel puts that
// thread back into the stop, so its work never runs concurrently with the application's own
// threads.
#pragma once

#include <sys/types.h>

#include <set>

#include "migrate-agent/linux/procfs/process_handle.h"
#include "src/base/result.h"

namespace gcr::tracing {

/// The stopped threads of one process. Belongs to the thread that created it.
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

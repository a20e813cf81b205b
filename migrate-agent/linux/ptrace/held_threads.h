// Stops all of a process except one thread, which works for the agent. The whole process is stopped
// by SIGSTOP, and ptrace lets the one thread run in spite of it. If the agent dies, the kernel puts
// that thread back into the stop, so its work never runs beside the application's own threads.
#pragma once

#include <sys/types.h>

#include <set>

#include "migrate-agent/linux/procfs/process_handle.h"
#include "src/base/result.h"

namespace gcr::tracing {

/// Belongs to the thread that made it.
class HeldThreads {
 public:
  /// The process may be stopped already.
  explicit HeldThreads(procfs::Process process) : process_(std::move(process)) {}
  HeldThreads(const HeldThreads&) = delete;
  HeldThreads& operator=(const HeldThreads&) = delete;
  /// As let_go().
  ~HeldThreads();

  /// `running` is a thread id in the process's own PID namespace. After a failure let_go() makes
  /// the process run again. kNotFound if there is no such thread, kPermissionDenied if another
  /// tracer has one.
  Status hold_all_but(pid_t running);

  /// Continues the whole process (SIGCONT), even if it was stopped before. Idempotent.
  void let_go();

 private:
  Status seize(pid_t tid);
  Status run(pid_t tid);

  const procfs::Process process_;
  const pid_t pid_ = process_.pid();
  bool stopped_ = false;
  pid_t running_ = 0;       ///< in our PID namespace
  std::set<pid_t> seized_;  ///< all threads, the running one too
};

}  // namespace gcr::tracing

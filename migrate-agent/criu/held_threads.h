// All of a process stands still but one thread, which serves us; and if we die, that one stands
// still too. The process is stopped as a whole by SIGSTOP, and ptrace lets the one thread run in
// spite of it. The kernel puts it back into the stop when its tracer ends, so that nothing which
// was asked of it can go on beside the application's own threads.
#pragma once

#include <sys/types.h>

#include <set>

#include "migrate-agent/procfs/process_handle.h"
#include "src/base/result.h"

namespace gcr::criu {

/// Belongs to the thread that made it.
class HeldThreads {
 public:
  /// The process may be stopped already.
  explicit HeldThreads(procfs::Process process) : process_(std::move(process)) {}
  HeldThreads(const HeldThreads&) = delete;
  HeldThreads& operator=(const HeldThreads&) = delete;
  /// As let_go().
  ~HeldThreads();

  /// `running` as the process's own PID namespace sees it. On failure let_go() makes the process
  /// run again. kNotFound if there is no such thread, kPermissionDenied if somebody else traces
  /// one.
  Status hold_all_but(pid_t running);

  /// The whole process goes on (SIGCONT), also if it was stopped before. Idempotent.
  void let_go();

 private:
  Status seize(pid_t tid);
  Status run(pid_t tid);

  const procfs::Process process_;
  const pid_t pid_ = process_.pid();
  bool stopped_ = false;
  pid_t running_ = 0;       ///< as our PID namespace sees it
  std::set<pid_t> seized_;  ///< all threads, the running one too
};

}  // namespace gcr::criu

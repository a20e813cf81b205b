// Restored tasks stand still until the commit: every thread of a stopped process is seized with
// ptrace, except those that must run so that CUDA and the preload library can come back.
//
// ptrace belongs to a thread, so each FrozenThreads has a thread of its own that holds the threads;
// callers may use any. While they are held, the death of this process kills the held process: an
// uncommitted copy must not start to run. stop_again() ends that dependence before the commit.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <set>

#include "migrate-agent/procfs/process_handle.h"
#include "src/base/result.h"

namespace gcr::criu {

/// Holds the threads of one process. One caller at a time.
class FrozenThreads {
 public:
  /// The process is stopped by SIGSTOP. Seizes every thread except `running` (thread ids as the
  /// process's own PID namespace sees them), then lets the process continue: only the running ones
  /// do, and threads that they create. `thaw` is called in between, where the process was frozen
  /// too. On failure everything seized is let go and the process is stopped again; kNotFound if a
  /// thread of `running` does not exist.
  static Result<FrozenThreads> seize(const procfs::Process& process, const std::set<pid_t>& running,
                                     const std::function<Status()>& thaw = {});

  FrozenThreads(FrozenThreads&&) noexcept;
  FrozenThreads& operator=(FrozenThreads&&) noexcept;
  /// As stop_again(), if neither it nor release() was called: nothing runs by accident.
  ~FrozenThreads();

  /// Lets go: every thread goes on where it was, in the system call where it was. Nothing stays
  /// behind, no stop and no tracer. Once.
  Status release();

  /// Stops the whole process by SIGSTOP, the running threads too, and lets go. It stands still by
  /// itself from then on, whatever becomes of this process, until resume_stopped(). `freeze` is
  /// called while the threads are still held: what it freezes, no SIGCONT lets run. Once.
  Status stop_again(const std::function<Status()>& freeze = {});

  /// How many threads are held.
  std::size_t count() const;

 private:
  struct Impl;
  explicit FrozenThreads(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gcr::criu

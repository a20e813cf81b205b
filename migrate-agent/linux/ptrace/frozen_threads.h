// Keeps restored tasks stopped until the commit: every thread of a stopped process is seized with
// ptrace, except those that must run to restore CUDA and the preload library.
//
// A tracer is a thread, so each FrozenThreads has its own thread that holds the others; callers may
// use any thread. While they are held, the death of this process kills the held processes: an
// uncommitted copy must not start to run. stop_again() ends that dependence before the commit.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "migrate-agent/linux/procfs/process_handle.h"
#include "src/base/result.h"

namespace gcr::tracing {

/// The held threads of the processes of a tree. One caller at a time.
class FrozenThreads {
 public:
  /// Seizes every thread except `running` (thread ids in the processes' PID namespace) and
  /// continues the processes: only `running` and the threads that they create run. The processes
  /// must be stopped by SIGSTOP and be in one PID namespace. If they are frozen too, `thaw` is
  /// called in between. On failure everything seized is released and the processes are stopped
  /// again; kNotFound if a thread of `running` does not exist.
  static Result<FrozenThreads> seize(const std::vector<procfs::Process>& processes,
                                     const std::set<pid_t>& running,
                                     const std::function<Status()>& thaw = {});

  FrozenThreads(FrozenThreads&&) noexcept;
  FrozenThreads& operator=(FrozenThreads&&) noexcept;
  /// Calls stop_again() if neither it nor release() was called, so that no thread runs by accident.
  ~FrozenThreads();

  /// Releases the threads: each continues where it was, in the same system call. No stop and no
  /// tracer remain. Call it once.
  Status release();

  /// Stops the processes by SIGSTOP, including the running threads, and releases the threads. They
  /// then stay stopped, even if this process ends, until resume_stopped(). `freeze` is called while
  /// the threads are still held: no SIGCONT wakes what it freezes. Call it once.
  Status stop_again(const std::function<Status()>& freeze = {});

  /// Returns how many threads are held.
  std::size_t count() const;

 private:
  struct Impl;
  explicit FrozenThreads(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gcr::tracing

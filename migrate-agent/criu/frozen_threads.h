// Restored tasks stand still until the commit: every thread of a stopped process is seized with
// ptrace, except those that must run so that CUDA and the preload library can come back.
#pragma once

#include <sys/types.h>

#include <memory>
#include <set>

#include "src/base/result.h"

namespace gcr::criu {

/// Holds the threads of one process. ptrace belongs to a thread: construct, release and destroy in
/// the same thread.
class FrozenThreads {
 public:
  /// `pid` is stopped by SIGSTOP. Seizes every thread except `running` (thread ids as the process's
  /// own PID namespace sees them), then lets the process continue: only the running ones do. On
  /// failure everything seized is let go and the process is stopped again.
  static Result<FrozenThreads> seize(pid_t pid, const std::set<pid_t>& running);

  FrozenThreads(FrozenThreads&&) noexcept;
  FrozenThreads& operator=(FrozenThreads&&) noexcept;
  /// Lets go of all threads, if release() has not.
  ~FrozenThreads();

  /// Detaches: every thread goes on where it was.
  Status release();

  std::size_t count() const;

 private:
  struct Impl;
  explicit FrozenThreads(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gcr::criu

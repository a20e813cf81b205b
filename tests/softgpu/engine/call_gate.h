// The gate that a lock of the checkpoint API closes: while it is closed, calls of the application
// wait.
#pragma once

#include <atomic>
#include <shared_mutex>

#include "tests/softgpu/engine/scheduler.h"

namespace gcr::softgpu {

/// Every API call that touches the library's state is inside; the serving thread closes the gate
/// and owns all of that state until it opens it again.
class CallGate {
 public:
  void enter() {
    while (true) {
      closing_.wait(true);
      calls_.lock_shared();
      if (!closing_.load()) return;
      calls_.unlock_shared();
    }
  }
  void leave() { calls_.unlock_shared(); }

  /// Keeps new calls out and waits until those inside have left. False (and open again): the
  /// deadline passed first. close() and open() belong to one thread.
  bool close(const Deadline& deadline) {
    closing_.store(true);
    if (!deadline) {
      calls_.lock();
      return true;
    }
    if (calls_.try_lock_until(*deadline)) return true;
    reopen();
    return false;
  }
  void open() {
    calls_.unlock();
    reopen();
  }

 private:
  void reopen() {
    closing_.store(false);
    closing_.notify_all();
  }

  std::atomic<bool> closing_ = false;
  std::shared_timed_mutex calls_;
};

}  // namespace gcr::softgpu

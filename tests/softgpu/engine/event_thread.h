// The thread through which a process waits if a context's waits block (CU_CTX_SCHED_BLOCKING_SYNC):
// it receives the device's notifications, and wakes the waiting threads. While it is stopped, they
// keep waiting.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace gcr::softgpu {

class EventThread {
 public:
  /// Returns when the thread, which starts with the first call, has answered. Any thread.
  void wait();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t asked_ = 0;
  std::uint64_t answered_ = 0;
  bool started_ = false;
};

}  // namespace gcr::softgpu

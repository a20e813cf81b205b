// The thread by which a process waits where a context's waits block (CU_CTX_SCHED_BLOCKING_SYNC):
// it takes note of what the device says, and wakes who waits. While it stands still, so do they.
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

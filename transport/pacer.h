// Limits the rate of all senders together.
//
// The pacer models a line of the given rate. Each call reserves the next free stretch of the line,
// as long as its bytes take, and waits until that stretch begins. Unused time is not saved up, so
// there are no bursts after a pause. A change of the limit releases all waiting callers.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace gcr::transport {

/// A rate limit shared by several senders. Thread-safe.
class Pacer {
 public:
  using Clock = std::chrono::steady_clock;

  /// Sets the rate, at once, also for waiting callers. 0: no limit.
  void limit(std::uint64_t bytes_per_second) {
    const std::lock_guard lock(mutex_);
    rate_ = bytes_per_second;
    next_ = {};
    ++changes_;
    changed_.notify_all();
  }

  /// Blocks until `bytes` may be sent, or the limit is changed.
  void wait(std::uint64_t bytes) {
    std::unique_lock lock(mutex_);
    if (rate_ == 0) return;
    const auto turn = std::max(next_, Clock::now());
    const std::chrono::duration<double> length(static_cast<double>(bytes) /
                                               static_cast<double>(rate_));
    next_ = turn + std::chrono::duration_cast<Clock::duration>(length);
    const std::uint64_t before = changes_;
    changed_.wait_until(lock, turn, [&] { return changes_ != before; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t rate_ = 0;
  std::uint64_t changes_ = 0;
  Clock::time_point next_{};
};

}  // namespace gcr::transport

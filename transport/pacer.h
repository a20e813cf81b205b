// Limits the rate of all senders together.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace gcr::transport {

/// Thread-safe. Bytes are scheduled one after the other as on a line of the given rate; time in
/// which nothing is sent is not saved up.
class Pacer {
 public:
  using Clock = std::chrono::steady_clock;

  /// Takes effect at once, also for waiting callers. 0: no limit.
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

// State that the lanes of one end share: the error that broke the transfer, the counters, and the
// limit of the rate.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "src/base/result.h"
#include "transport/channel.h"

namespace gcr::transport {

/// The error that broke a transfer; every lane reports it. Thread-safe.
class FirstError {
 public:
  /// Keeps `error` unless there is one already; returns the one that is kept.
  Error set(Error error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    is_set_.store(true, std::memory_order_release);
    return *error_;
  }

  explicit operator bool() const { return is_set_.load(std::memory_order_acquire); }

  /// The kept error; success if there is none.
  Status status() const {
    if (!*this) return {};
    const std::lock_guard lock(mutex_);
    return *error_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Error> error_;  ///< guarded by mutex_
  std::atomic<bool> is_set_ = false;
};

/// Counts the traffic of all lanes. Thread-safe.
class Counters {
 public:
  void add_bytes(std::uint64_t payload, std::uint64_t header) {
    payload_bytes_.fetch_add(payload, std::memory_order_relaxed);
    wire_bytes_.fetch_add(payload + header, std::memory_order_relaxed);
  }
  void add_write() { writes_.fetch_add(1, std::memory_order_relaxed); }

  Statistics statistics(std::uint64_t reconnections = 0) const {
    return {.payload_bytes = payload_bytes_.load(std::memory_order_relaxed),
            .wire_bytes = wire_bytes_.load(std::memory_order_relaxed),
            .writes = writes_.load(std::memory_order_relaxed),
            .reconnections = reconnections};
  }

 private:
  std::atomic<std::uint64_t> payload_bytes_ = 0;
  std::atomic<std::uint64_t> wire_bytes_ = 0;
  std::atomic<std::uint64_t> writes_ = 0;
};

/// A rate limit shared by all senders. Thread-safe.
///
/// The pacer models a line of the given rate. Each call reserves the next free stretch of the line,
/// as long as its bytes take, and waits until that stretch begins. Unused time is not saved up, so
/// there are no bursts after a pause. A change of the limit releases all waiting callers.
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

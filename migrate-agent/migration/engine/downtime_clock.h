// How long the job has been stopped: since its gate closed, with the times before at which the gate
// opened again on this host. Any thread: the course writes, the console reads.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <utility>

namespace gcr::migration {

class DowntimeClock {
 public:
  using Clock = std::chrono::steady_clock;

  /// The gate closes, or the job was stopped before.
  void begin() {
    const std::lock_guard lock(mutex_);
    since_ = Clock::now();
    until_.reset();
  }

  /// The job runs again, here or elsewhere. Gives the downtime, with the closings that were undone.
  Clock::duration end() {
    const std::lock_guard lock(mutex_);
    until_ = Clock::now();
    return undone_ + closed();
  }

  /// The gate is open again, and the job was never taken apart, or has been put together again.
  /// When the gate had closed; nothing if it was open.
  std::optional<Clock::time_point> undo() {
    const std::lock_guard lock(mutex_);
    undone_ += closed();
    until_.reset();
    return std::exchange(since_, std::nullopt);
  }

  /// When the gate closed; nothing while it is open.
  std::optional<Clock::time_point> since() const {
    const std::lock_guard lock(mutex_);
    return since_;
  }

  /// From the last closing of the gate to end(), or until now; zero while the gate is open.
  Clock::duration current() const {
    const std::lock_guard lock(mutex_);
    return closed();
  }

 private:
  Clock::duration closed() const {
    return since_ ? until_.value_or(Clock::now()) - *since_ : Clock::duration::zero();
  }

  mutable std::mutex mutex_;
  std::optional<Clock::time_point> since_, until_;
  Clock::duration undone_{};
};

}  // namespace gcr::migration

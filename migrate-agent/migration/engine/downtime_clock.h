// How long the job has been stopped: since its gate closed, and during earlier closings after which
// the gate opened again on this host. Any thread may call: the course writes, the console reads.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <utility>

namespace gcr::migration {

class DowntimeClock {
 public:
  using Clock = std::chrono::steady_clock;

  /// Starts the clock: the gate closes, or the job was stopped already.
  void begin() {
    const std::lock_guard lock(mutex_);
    since_ = Clock::now();
    until_.reset();
  }

  /// Stops the clock: the job runs again. Gives the downtime, with closings that were undone.
  Clock::duration end() {
    const std::lock_guard lock(mutex_);
    until_ = Clock::now();
    return undone_ + closed();
  }

  /// Records that the gate is open again on this host and the job runs. Gives the time at which the
  /// gate had closed; nothing if it was open.
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

  /// The time from the last closing to end(), or until now; zero while the gate is open.
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

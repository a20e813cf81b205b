// A request to cancel a migration: the worker's code checks it between steps or registers a
// callback. Any thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>

#include "src/base/result.h"

namespace gcr::worker {

class Cancellation {
 public:
  /// Once it is destroyed, its callback is not running and will not run.
  using Registration = std::unique_ptr<std::stop_callback<std::function<void()>>>;

  /// Cancels at a user's request. The first reason is kept. Runs every registered callback on this
  /// thread before it returns.
  void request(std::string why) { request(Error(Code::kCancelled, std::move(why))); }

  /// Cancels because of an error, for example that the other agent is gone.
  void request(Error why) {
    {
      const std::lock_guard lock(mutex_);
      if (!reason_) reason_ = std::move(why);
    }
    stop_.request_stop();
  }

  bool requested() const { return stop_.stop_requested(); }

  /// Returns the reason if a cancel was requested: kCancelled, or the error given to request().
  Status check() const {
    const std::lock_guard lock(mutex_);
    if (reason_) return *reason_;
    return {};
  }

  /// Registers a callback. It runs once, on the thread that calls request(), or at once on this
  /// thread if that has already happened. It may destroy registrations, including its own, but must
  /// not wait for other threads that do.
  [[nodiscard]] Registration on_request(std::function<void()> callback) {
    return std::make_unique<Registration::element_type>(
        stop_.get_token(), [callback = std::move(callback)] {
          const auto running = callback;  // it outlives its registration
          running();
        });
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Error> reason_;
  std::stop_source stop_;
};

}  // namespace gcr::worker

// Throttles an application by holding back its GPU calls for a share of the time, so that pre-copy
// can catch up with what it dirties, as QEMU throttles the CPUs of a guest that dirties memory
// faster than the link drains it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "migrate-agent/gpu/access/gates.h"
#include "src/base/result.h"

namespace gcr::gpu {

/// Closes and opens the gate in turns, on a thread of its own. As in QEMU, the gate is open for
/// kWindow each time and closed for as long as the share asks for: so a program with large steps
/// does fewer of them, whereas with a fixed period one step would get through in each. Any thread
/// may call the methods, one at a time.
class Throttle {
 public:
  static constexpr std::chrono::milliseconds kWindow{10};
  static constexpr double kMostShare = 0.99;

  struct Held {
    std::chrono::nanoseconds held{0};     ///< from requesting a closed gate to an open one
    std::chrono::nanoseconds elapsed{0};  ///< since the throttle was made

    /// 0 to 1; 0 if no time has passed.
    double share() const;
  };

  /// Does not throttle yet. `gate` is open and outlives the throttle, which uses it alone until
  /// stop(), which the destructor calls if it was not called.
  explicit Throttle(Gate& gate);
  Throttle(const Throttle&) = delete;
  Throttle& operator=(const Throttle&) = delete;

  /// The share of time for which the gate is closed from now on; clamped to 0 to kMostShare.
  void set_share(double share);

  /// For how long the gate was really closed so far. Closing waits for the GPU's work, which counts
  /// as closed; so does the time of an attempt that fails.
  Held held() const;

  /// Opens the gate and ends; the owner may use the access again. The error is the one that ended
  /// the throttling early: kNotFound if the process has ended. If this process dies instead, the
  /// gate opens by itself within two seconds. Calling it again does nothing.
  Status stop();

 private:
  using Clock = std::chrono::steady_clock;

  void run(const std::stop_token& token);
  std::chrono::nanoseconds time_to_hold() const;
  Status hold_for(std::chrono::nanoseconds time, const std::stop_token& token);
  void wait_until(Clock::time_point end, const std::stop_token& token);

  Gate& gate_;
  const Clock::time_point start_ = Clock::now();
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  double share_ = 0;  ///< guarded by the mutex, as `held_`
  std::chrono::nanoseconds held_{0};
  Status status_;  ///< of the thread, until it has ended
  std::jthread thread_;
};

}  // namespace gcr::gpu

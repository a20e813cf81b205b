// Steps at a fixed interval.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace gcr::apps {

class Pace {
 public:
  explicit Pace(double period_ms)
      : period_(std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double, std::milli>(period_ms))) {}

  void begin_step() { begun_ = Clock::now(); }
  /// Sleeps for the rest of the step; a signal's handler may run meanwhile.
  void end_step() const {
    // The clock may be another host's by now.
    const Clock::duration left = period_ - (Clock::now() - begun_);
    if (left > Clock::duration::zero()) std::this_thread::sleep_for(std::min(left, period_));
  }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::duration period_;
  Clock::time_point begun_;
};

}  // namespace gcr::apps

// Waiting for events outside of a test's own processes, which send no notification.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

namespace gcr::test {

/// Polls, which may start programs, for a fifth of the time; false if it does not hold in a while.
/// No test depends on how long that is.
inline bool wait_until(const std::function<bool()>& is_so) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + std::chrono::minutes(2);
  for (Clock::time_point looked = Clock::now(); !is_so(); looked = Clock::now()) {
    if (looked > end) return false;
    std::this_thread::sleep_for(
        std::max<Clock::duration>(std::chrono::milliseconds(5), 4 * (Clock::now() - looked)));
  }
  return true;
}

}  // namespace gcr::test

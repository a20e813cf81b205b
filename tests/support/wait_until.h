// Waiting for what happens outside of a test's own processes, which tells nobody.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace gcr::test {

/// Looks again and again; false if it is not so in a while. No test depends on how long that is.
inline bool wait_until(const std::function<bool()>& is_so) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace gcr::test

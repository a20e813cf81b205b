// Concurrent work on several items.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <future>
#include <iterator>
#include <thread>
#include <vector>

#include "src/base/result.h"

namespace gcr {

/// Calls `work` for each of `items` concurrently, each on its own thread, the first on the
/// caller's. Returns when all calls have ended: success, or the first error in the order of the
/// items.
template <class Items, class Work>
Status side_by_side(Items&& items, const Work& work) {
  if (std::empty(items)) return {};
  std::vector<std::future<Status>> others;
  for (auto item = std::ranges::next(std::begin(items)); item != std::end(items); ++item) {
    others.push_back(
        std::async(std::launch::async, [&work, item]() -> Status { return work(*item); }));
  }
  Status all = work(*std::begin(items));
  for (std::future<Status>& other : others) {
    const Status one = other.get();
    if (all && !one) all = one;
  }
  return all;
}

/// Calls `work` for each number below `count`, on up to `most_threads` threads, the caller's among
/// them, and on no more than there are processors. A thread that is free takes the next number;
/// after an error none takes another. Returns when all have ended: an error if there was one.
template <class Work>
Status share_out(std::size_t count, std::size_t most_threads, const Work& work) {
  const std::size_t processors = std::max(1u, std::thread::hardware_concurrency());
  std::atomic<std::size_t> next{0};
  const auto take_in_turn = [&](std::size_t) -> Status {
    for (std::size_t i = next++; i < count; i = next++) {
      const Status done = work(i);
      if (done) continue;
      next = count;
      return done;
    }
    return {};
  };
  const std::size_t threads = std::min({count, most_threads, processors});
  return side_by_side(std::vector<std::size_t>(threads), take_in_turn);
}

/// share_out() of work that takes some tens of microseconds each, such as reading of a thread in
/// /proc: for few it is not worth to start a thread.
template <class Work>
Status share_out_brief(std::size_t count, const Work& work) {
  constexpr std::size_t kWorthThread = 16;
  constexpr std::size_t kMostThreads = 8;
  return share_out(count, std::min(count / kWorthThread + 1, kMostThreads), work);
}

}  // namespace gcr

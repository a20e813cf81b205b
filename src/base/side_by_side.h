// Work on several things at the same time.
#pragma once

#include <future>
#include <iterator>
#include <vector>

#include "src/base/result.h"

namespace gcr {

/// Calls `work` for each of `items` at the same time, each on a thread of its own, the first on the
/// caller's; returns when all have ended. The first error in the order of the items.
template <class Items, class Work>
Status side_by_side(Items& items, const Work& work) {
  if (std::empty(items)) return {};
  std::vector<std::future<Status>> others;
  for (auto item = std::next(std::begin(items)); item != std::end(items); ++item) {
    others.push_back(
        std::async(std::launch::async, [&work, &one = *item]() -> Status { return work(one); }));
  }
  Status all = work(*std::begin(items));
  for (std::future<Status>& other : others) {
    const Status one = other.get();
    if (all && !one) all = one;
  }
  return all;
}

}  // namespace gcr

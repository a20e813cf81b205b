#include "src/base/side_by_side.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace gcr {
namespace {

TEST(ShareOut, EachIndexRunsOnce) {
  for (const std::size_t count : {0, 1, 1000}) {
    std::vector<std::atomic<int>> taken(count);
    const Status status = share_out(count, 4, [&](std::size_t i) -> Status {
      ++taken.at(i);
      return {};
    });
    EXPECT_TRUE(status);
    for (const std::atomic<int>& times : taken) EXPECT_EQ(times, 1);
  }
}

TEST(ShareOut, ErrorEndsItAndIsReturned) {
  std::vector<std::size_t> taken;
  const Status status = share_out(1000, 1, [&](std::size_t i) -> Status {
    taken.push_back(i);
    if (i == 2) return Error(Code::kIo, "the third fails");
    return {};
  });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message(), "the third fails");
  EXPECT_EQ(taken, (std::vector<std::size_t>{0, 1, 2}));
}

TEST(ShareOut, NumberOfThreadsIsLimited) {
  std::atomic<int> working{0};
  std::atomic<int> most{0};
  ASSERT_TRUE(share_out(1000, 2, [&](std::size_t) -> Status {
    const int now = ++working;
    if (now > most) most = now;
    --working;
    return {};
  }));
  EXPECT_LE(most, 2);
}

}  // namespace
}  // namespace gcr

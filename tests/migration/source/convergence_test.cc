// The end of pre-copy, decided from synthetic programs and links.
#include "migrate-agent/migration/engine/convergence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "src/base/units.h"

namespace gcr::migration {
namespace {

/// A program with a working set, a dirty rate, and a link; time advances as bytes are sent.
struct World {
  double working_set = 0;
  double dirty_rate = 0;  // bytes per second
  double link_rate = 1e9;
  double remaining = 0;
  std::vector<double> sent = {};
  std::vector<double> throttles = {};

  Result<Convergence::Next> run(Convergence& convergence) {
    for (;;) {
      auto next = convergence.decide(static_cast<std::uint64_t>(remaining));
      if (!next || *next != Convergence::Next::kRound) return next;
      const double seconds = remaining / link_rate;
      convergence.sent(static_cast<std::uint64_t>(remaining), seconds);
      sent.push_back(remaining);
      throttles.push_back(convergence.throttle());
      remaining = std::min(working_set, dirty_rate * (1 - convergence.throttle()) * seconds);
    }
  }
};

TEST(ConvergenceTest, IdleProgramNeedsOneRound) {
  Convergence convergence({});
  World world{.remaining = 8e9};
  const auto next = world.run(convergence);
  ASSERT_TRUE(next);
  EXPECT_EQ(*next, Convergence::Next::kFits);
  EXPECT_EQ(world.sent.size(), 1U);
  EXPECT_DOUBLE_EQ(convergence.rate(), 1e9);
}

TEST(ConvergenceTest, NothingToSendNeedsNoRound) {
  Convergence convergence({});
  World world;
  const auto next = world.run(convergence);
  ASSERT_TRUE(next);
  EXPECT_EQ(*next, Convergence::Next::kFits);
  EXPECT_TRUE(world.sent.empty());
}

TEST(ConvergenceTest, RoundsContinueUntilTheRestFitsTheLimit) {
  Convergence convergence({.downtime_ms = 100});
  World world{.working_set = 8e9, .dirty_rate = 5e8, .remaining = 8e9};
  const auto next = world.run(convergence);
  ASSERT_TRUE(next);
  EXPECT_EQ(*next, Convergence::Next::kFits);
  EXPECT_LE(convergence.expected_ms(static_cast<std::uint64_t>(world.remaining)), 100);
  // Halving from 8 GB to 100 MB takes seven rounds.
  EXPECT_EQ(world.sent.size(), 7U);
}

TEST(ConvergenceTest, ConstantWorkingSetIsSwitchedOver) {
  Convergence convergence({});
  World world{.working_set = 2e9, .dirty_rate = 9e9, .remaining = 8e9};
  const auto next = world.run(convergence);
  ASSERT_TRUE(next);
  EXPECT_EQ(*next, Convergence::Next::kStuck);
  EXPECT_DOUBLE_EQ(world.remaining, 2e9);
  EXPECT_EQ(world.sent.size(), 3U);
}

TEST(ConvergenceTest, AutoConvergeThrottlesUntilTheRestFits) {
  Convergence convergence({.auto_converge = true});
  World world{.working_set = 8e9, .dirty_rate = 2e9, .remaining = 8e9};
  const auto next = world.run(convergence);
  ASSERT_TRUE(next);
  EXPECT_EQ(*next, Convergence::Next::kFits);
  EXPECT_TRUE(std::is_sorted(world.throttles.begin(), world.throttles.end()));
  EXPECT_EQ(world.throttles.front(), 0);
  EXPECT_GT(world.throttles.back(), 0.5);
  EXPECT_LE(world.throttles.back(), 0.99);
}

TEST(ConvergenceTest, StrictFailsAndNamesTheNeededLimit) {
  Convergence convergence({.downtime_ms = 200, .strict = true});
  World world{.working_set = 2e9, .dirty_rate = 9e9, .remaining = 8e9};
  const auto next = world.run(convergence);
  ASSERT_FALSE(next);
  EXPECT_EQ(next.error().code(), Code::kTimeout);
  EXPECT_NE(next.error().message().find("2000 ms"), std::string::npos) << next.error().message();
  EXPECT_NE(next.error().message().find("200 ms"), std::string::npos);
}

TEST(ConvergenceTest, OnlyStrictRefusesLateGrowth) {
  Convergence strict({.strict = true});
  Convergence lenient({});
  strict.sent(1'000'000'000, 1);
  lenient.sent(1'000'000'000, 1);
  EXPECT_TRUE(strict.acceptable(300'000'000));
  EXPECT_FALSE(strict.acceptable(400'000'000));
  EXPECT_TRUE(lenient.acceptable(400'000'000));
}

TEST(ConvergenceTest, NumberOfRoundsIsLimited) {
  Convergence convergence({.downtime_ms = 1, .max_rounds = 4});
  World world{.working_set = 8e9, .dirty_rate = 5e8, .remaining = 8e9};
  const auto next = world.run(convergence);
  ASSERT_TRUE(next);
  EXPECT_EQ(*next, Convergence::Next::kRounds);
  EXPECT_EQ(world.sent.size(), 4U);
}

TEST(ConvergenceTest, TinyRoundHardlyChangesTheRate) {
  Convergence convergence({});
  convergence.sent(4'000'000'000, 4);
  convergence.sent(2 * kMiB, 0.001);
  EXPECT_NEAR(convergence.rate(), 1e9, 2e7);
  convergence.sent(4'000'000'000, 8);
  EXPECT_NEAR(convergence.rate(), 5e8, 1);
}

}  // namespace
}  // namespace gcr::migration

// The progress of a copy, from synthetic rounds on a synthetic clock.
#include "migrate-agent/migration/engine/progress_meter.h"

#include <gtest/gtest.h>

namespace gcr::migration {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kMB = 1'000'000;
const SteadyDowntime kKnown{.control_ms = 100, .rest_ms = 50, .is_least = false};

class Meter : public testing::Test {
 protected:
  ProgressMeter::Clock::time_point at(int ms) const { return begin_ + milliseconds(ms); }
  void find_dirty(int ms, std::uint64_t dirty_mb) {
    meter_.end_digest({.began = at(ms),
                       .digest_ms = 10,
                       .vram_bytes = 1000 * kMB,
                       .dirty_bytes = dirty_mb * kMB});
  }
  proto::Progress sample(int ms, std::uint64_t sent_mb) {
    return meter_.sample(sent_mb * kMB, at(ms), {steady_, 300, 30});
  }

  ProgressMeter::Clock::time_point begin_ = ProgressMeter::Clock::now();
  ProgressMeter meter_;
  SteadyDowntime steady_ = kKnown;
};

TEST_F(Meter, ReportsNothingBeforeTheFirstSearch) {
  const auto progress = sample(0, 0);
  EXPECT_EQ(progress.vram_bytes(), 0U);
  EXPECT_EQ(progress.expected_downtime_ms(), 0);
}

TEST_F(Meter, CountsBytesOfTheRoundAndInTotal) {
  find_dirty(0, 800);
  meter_.begin_round(1, 5 * kMB, at(0));
  auto progress = sample(500, 205);
  EXPECT_EQ(progress.round(), 1U);
  EXPECT_EQ(progress.round_bytes(), 800 * kMB);
  EXPECT_EQ(progress.sent_bytes(), 200 * kMB);
  EXPECT_EQ(progress.remaining_bytes(), 600 * kMB);
  EXPECT_DOUBLE_EQ(progress.rate_bytes_per_s(), 4e8);
  meter_.end_round(800 * kMB);
  progress = sample(2000, 805);
  EXPECT_EQ(progress.sent_bytes(), 800 * kMB);
  EXPECT_EQ(progress.remaining_bytes(), 0U);
  find_dirty(2010, 80);
  meter_.begin_round(2, 805 * kMB, at(2020));
  EXPECT_EQ(sample(2030, 825).sent_bytes(), 820 * kMB);
}

TEST_F(Meter, RateIsThatOfTheLastSeconds) {
  find_dirty(0, 1000);
  meter_.begin_round(1, 0, at(0));
  for (int ms = 200; ms <= 4000; ms += 200) sample(ms, static_cast<std::uint64_t>(ms) / 20);
  // The link becomes ten times as fast: after two seconds the old rate has no effect.
  double rate = 0;
  for (int ms = 4200; ms <= 6400; ms += 200) {
    rate = sample(ms, 200 + static_cast<std::uint64_t>(ms - 4000) / 2).rate_bytes_per_s();
  }
  EXPECT_NEAR(rate, 5e8, 1e6);
}

TEST_F(Meter, DirtyRateIsThatBetweenTwoSearches) {
  find_dirty(0, 1000);
  EXPECT_EQ(sample(1, 0).dirty_rate_bytes_per_s(), 0);  // all of it was there before
  meter_.begin_round(1, 0, at(10));
  meter_.end_round(1000 * kMB);
  find_dirty(2000, 100);
  EXPECT_DOUBLE_EQ(sample(2001, 1000).dirty_rate_bytes_per_s(), 5e7);
}

TEST_F(Meter, DowntimeIncludesPagesDirtiedDuringTheRound) {
  find_dirty(0, 1000);
  meter_.begin_round(1, 0, at(0));
  sample(1000, 500);
  meter_.end_round(1000 * kMB);
  find_dirty(2000, 200);  // 100 MB/s
  const auto progress = sample(3000, 1000);
  // 200 MB found, 100 MB dirtied since, at 500 MB/s, after 10 ms of digests: longer than the dump.
  EXPECT_NEAR(progress.expected_downtime_ms(), 10 + 600 + 50, 1e-6);
  EXPECT_FALSE(progress.expected_is_least());
}

TEST_F(Meter, DowntimeIsThatOfTheDumpIfLittleIsLeft) {
  find_dirty(0, 1000);
  meter_.begin_round(1, 0, at(0));
  sample(1000, 500);
  meter_.end_round(1000 * kMB);
  find_dirty(2000, 0);
  EXPECT_DOUBLE_EQ(sample(2000, 1000).expected_downtime_ms(), 150);
}

TEST_F(Meter, WithoutHistoryDowntimeIsALowerBound) {
  steady_ = {};
  find_dirty(0, 1000);
  meter_.begin_round(1, 0, at(0));
  EXPECT_TRUE(sample(1000, 500).expected_is_least());
}

TEST_F(Meter, ImagesOnTheChannelDoNotCountAsVram) {
  find_dirty(0, 10);
  meter_.begin_round(1, 0, at(0));
  const auto progress = sample(100, 500);
  EXPECT_EQ(progress.sent_bytes(), 10 * kMB);
  EXPECT_EQ(progress.remaining_bytes(), 0U);
}

TEST(Forecast, IdleProgramNeedsOneRound) {
  const auto ahead = forecast(1e9, {.send_bytes_per_s = 1e9, .dirty_bytes_per_s = 0}, 300, 30);
  ASSERT_TRUE(ahead);
  EXPECT_DOUBLE_EQ(ahead->until_gate_ms, 1000);
  EXPECT_DOUBLE_EQ(ahead->last_round_bytes, 0);
}

TEST(Forecast, RoundsShrinkByTheRatioOfTheRates) {
  // 1 s, 0.5 s, 0.25 s: that fits.
  const auto ahead = forecast(1e9, {.send_bytes_per_s = 1e9, .dirty_bytes_per_s = 5e8}, 300, 30);
  ASSERT_TRUE(ahead);
  EXPECT_DOUBLE_EQ(ahead->until_gate_ms, 1500);
  EXPECT_DOUBLE_EQ(ahead->last_round_bytes, 2.5e8);
}

TEST(Forecast, IsEmptyIfRoundsDoNotShrinkOrNoneAreLeft) {
  EXPECT_FALSE(forecast(1e9, {.send_bytes_per_s = 1e9, .dirty_bytes_per_s = 1e9}, 300, 30));
  EXPECT_FALSE(forecast(1e9, {.send_bytes_per_s = 1e9, .dirty_bytes_per_s = 5e8}, 1, 3));
  EXPECT_FALSE(forecast(1e9, {}, 300, 30));
}

}  // namespace
}  // namespace gcr::migration

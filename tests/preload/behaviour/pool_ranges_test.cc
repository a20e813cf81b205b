// Placement and reuse of stream-ordered memory, without a driver.
#include "preload/memory/pool_ranges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace gcr::preload {
namespace {

constexpr std::size_t kPoolUnit = PoolRanges::kUnitBytes;
constexpr Address kStretch = 0x7f00'0000'0000;
constexpr std::size_t kStretchBytes = 64 * kPoolUnit;

class PoolRangesTest : public testing::Test {
 protected:
  PoolRangesTest() { ranges_.add_stretch(kStretch, kStretchBytes); }
  PoolRanges ranges_;
};

TEST_F(PoolRangesTest, StreamReusesItsOwnFreesAtOnce) {
  const Address address = ranges_.allocate(1, kStretchBytes);
  EXPECT_EQ(address, kStretch);
  EXPECT_EQ(ranges_.allocate(1, kPoolUnit), 0u);
  ranges_.release(address, kStretchBytes, {1, 5});
  EXPECT_EQ(ranges_.allocate(1, kStretchBytes), address);
}

TEST_F(PoolRangesTest, OtherStreamReusesAFreeOnlyOnceReached) {
  ranges_.release(ranges_.allocate(1, kStretchBytes), kStretchBytes, {1, 5});
  EXPECT_EQ(ranges_.allocate(2, kPoolUnit), 0u);
  EXPECT_EQ(ranges_.allocate_joined(2, kPoolUnit), 0u);
  ranges_.pass({1, 4});
  EXPECT_EQ(ranges_.allocate(2, kPoolUnit), 0u);
  ranges_.pass({2, 9});
  EXPECT_EQ(ranges_.allocate(2, kPoolUnit), 0u);
  ranges_.pass({1, 5});
  EXPECT_EQ(ranges_.allocate(2, kStretchBytes), kStretch);
}

TEST_F(PoolRangesTest, MergedRangesHaveTheLatestFree) {
  const Address first = ranges_.allocate(1, kPoolUnit);
  const Address second = ranges_.allocate(1, kStretchBytes - kPoolUnit);
  ranges_.release(first, kPoolUnit, {1, 3});
  ranges_.release(second, kStretchBytes - kPoolUnit, {1, 7});
  ranges_.pass({1, 3});
  EXPECT_EQ(ranges_.allocate_joined(2, kPoolUnit), 0u);
  EXPECT_EQ(ranges_.allocate(1, kStretchBytes), kStretch);
}

TEST_F(PoolRangesTest, OwnAndSharedNeighboursAreJoined) {
  const Address first = ranges_.allocate(1, 32 * kPoolUnit);
  ranges_.release(first, 32 * kPoolUnit, {1, 3});
  EXPECT_EQ(ranges_.allocate(1, kStretchBytes), 0u);
  EXPECT_EQ(ranges_.allocate_joined(2, kStretchBytes), 0u);
  EXPECT_EQ(ranges_.allocate_joined(1, kStretchBytes), kStretch);
  EXPECT_EQ(ranges_.allocate(2, kPoolUnit), 0u);
}

TEST_F(PoolRangesTest, RestOfAJoinedRangeBelongsToTheStream) {
  ranges_.release(ranges_.allocate(1, 32 * kPoolUnit), 32 * kPoolUnit, {1, 3});
  EXPECT_EQ(ranges_.allocate_joined(1, 40 * kPoolUnit), kStretch);
  EXPECT_EQ(ranges_.allocate(2, kPoolUnit), 0u);
  ranges_.pass({1, 3});
  EXPECT_EQ(ranges_.allocate(2, 24 * kPoolUnit), kStretch + 40 * kPoolUnit);
}

TEST_F(PoolRangesTest, AllocationLiesInOneStretch) {
  ranges_.add_stretch(kStretch + kStretchBytes, kStretchBytes);
  EXPECT_EQ(ranges_.allocate(1, kStretchBytes + kPoolUnit), 0u);
  EXPECT_EQ(ranges_.allocate_joined(1, kStretchBytes + kPoolUnit), 0u);
  EXPECT_NE(ranges_.allocate(1, kStretchBytes), 0u);
  EXPECT_NE(ranges_.allocate(1, kStretchBytes), 0u);
}

TEST_F(PoolRangesTest, StretchIsRemovedOnlyIfAllOfItIsShared) {
  const Address address = ranges_.allocate(1, kPoolUnit);
  EXPECT_EQ(ranges_.remove_free_stretch(kStretchBytes), 0u);
  ranges_.release(address, kPoolUnit, {1, 3});
  EXPECT_EQ(ranges_.remove_free_stretch(kStretchBytes), 0u);
  ranges_.pass({1, 3});
  EXPECT_EQ(ranges_.remove_free_stretch(kStretchBytes - 1), 0u);
  EXPECT_EQ(ranges_.remove_free_stretch(kStretchBytes), kStretch);
  EXPECT_FALSE(ranges_.has_stretches());
  EXPECT_EQ(ranges_.allocate(1, kPoolUnit), 0u);
}

TEST_F(PoolRangesTest, SmallestUsableRangeOfOthersIsTaken) {
  const Address first = ranges_.allocate(1, 20 * kPoolUnit);
  const Address second = ranges_.allocate(1, 10 * kPoolUnit);
  ranges_.allocate(1, kStretchBytes - 30 * kPoolUnit);
  ranges_.release(first, 20 * kPoolUnit, {1, 3});
  ranges_.release(second, 10 * kPoolUnit, {2, 4});
  const auto any = [](StreamPoint) { return true; };
  EXPECT_EQ(ranges_.allocate_from_others(5 * kPoolUnit, [](StreamPoint) { return false; }), 0u);
  EXPECT_EQ(ranges_.allocate_from_others(5 * kPoolUnit, any), second);
  EXPECT_EQ(ranges_.allocate_from_others(15 * kPoolUnit, any), first);
  EXPECT_EQ(ranges_.allocate_from_others(15 * kPoolUnit, any), 0u);
}

/// The state of every unit, in the simplest form.
struct Unit {
  bool live = false;
  std::uint64_t stream = StreamPoint::kAllStreams;
  std::uint64_t ticket = 0;
};

TEST(PoolRangesRandomTest, NoRangeInUseIsAllocatedAgain) {
  constexpr std::size_t kUnits = 512;
  constexpr std::uint64_t kStreams = 4;
  PoolRanges ranges;
  std::vector<Unit> units(2 * kUnits);
  ranges.add_stretch(kStretch, kUnits * kPoolUnit);
  ranges.add_stretch(kStretch + kUnits * kPoolUnit, kUnits * kPoolUnit);
  std::map<Address, std::size_t> live;
  std::mt19937 random(3);
  std::uint64_t ticket = 0;
  std::size_t taken_count = 0;
  for (int step = 0; step < 60000; ++step) {
    const std::uint64_t stream = 1 + random() % kStreams;
    switch (random() % 5) {
      case 0:
      case 1: {
        const std::size_t count = 1 + random() % (std::size_t{1} << random() % 8);
        Address address = ranges.allocate(stream, count * kPoolUnit);
        if (address == 0) address = ranges.allocate_joined(stream, count * kPoolUnit);
        const auto usable = [&](const Unit& unit) {
          return !unit.live && (unit.stream == stream || unit.stream == StreamPoint::kAllStreams);
        };
        if (address == 0) {
          for (std::size_t i = 0, run = 0; i < units.size(); ++i) {
            if (i == kUnits) run = 0;
            run = usable(units[i]) ? run + 1 : 0;
            ASSERT_LT(run, count) << "there was room, step " << step;
          }
          break;
        }
        ++taken_count;
        for (std::size_t i = 0; i < count; ++i) {
          Unit& unit = units.at((address - kStretch) / kPoolUnit + i);
          ASSERT_TRUE(usable(unit)) << "step " << step;
          unit.live = true;
        }
        live[address] = count;
        break;
      }
      case 2:
      case 3: {
        if (live.empty()) break;
        const auto victim =
            std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
        ++ticket;
        for (std::size_t i = 0; i < victim->second; ++i) {
          units[(victim->first - kStretch) / kPoolUnit + i] = {false, stream, ticket};
        }
        ranges.release(victim->first, victim->second * kPoolUnit, {stream, ticket});
        live.erase(victim);
        break;
      }
      default: {
        // A joined range is as young as its youngest part: only a stream that has passed all frees
        // may reuse it.
        for (Unit& unit : units) {
          if (!unit.live && unit.stream == stream) unit.stream = StreamPoint::kAllStreams;
        }
        ranges.pass({stream, ticket});
        break;
      }
    }
  }
  EXPECT_GT(taken_count, 5000u);
}

}  // namespace
}  // namespace gcr::preload

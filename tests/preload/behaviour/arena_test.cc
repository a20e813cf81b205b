// Placement of small allocations, without a driver.
#include "preload/memory/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <vector>

namespace gcr::preload {
namespace {

constexpr std::size_t kKibi = 1024;
constexpr std::size_t kMebi = 1024 * kKibi;
constexpr std::size_t kUnit = 512;
constexpr Address kStart = 0x7f00'0000'0000;

Context* context(int number) { return reinterpret_cast<Context*>(std::uintptr_t(number)); }

/// Arenas that grow as the library allows, at addresses without gaps; and their live allocations.
class Heap {
 public:
  /// With `other_bytes` of VRAM outside arenas.
  explicit Heap(std::size_t other_bytes = 0) : other_bytes_(other_bytes) {}

  Address allocate(std::size_t bytes) {
    Address address = arenas_.allocate(context(1), bytes);
    if (address == 0) {
      const std::size_t size_bytes =
          arenas_.next_size_bytes(context(1), bytes, other_bytes_ + arena_bytes_);
      arenas_.add(Arena(kind_of(bytes), ++count_, context(1), kStart + arena_bytes_, size_bytes));
      arena_bytes_ += size_bytes;
      address = arenas_.allocate(context(1), bytes);
    }
    live_[address] = bytes;
    live_bytes_ += bytes;
    most_live_bytes_ = std::max(most_live_bytes_, live_bytes_);
    return address;
  }
  void free(Address address) {
    const auto found = live_.find(address);
    arenas_.release({arenas_.find(address)->number(), address, found->second});
    live_bytes_ -= found->second;
    live_.erase(found);
  }

  const std::map<Address, std::size_t>& live() const { return live_; }
  std::size_t arenas() const { return count_; }
  std::size_t arena_bytes() const { return arena_bytes_; }
  std::size_t live_bytes() const { return live_bytes_; }
  std::size_t most_live_bytes() const { return most_live_bytes_; }

 private:
  std::size_t other_bytes_;
  Arenas arenas_;
  std::uint64_t count_ = 0;
  std::size_t arena_bytes_ = 0;
  std::map<Address, std::size_t> live_;
  std::size_t live_bytes_ = 0;
  std::size_t most_live_bytes_ = 0;
};

TEST(ArenaTest, LowestFittingRangeIsUsed) {
  constexpr std::size_t kUnits = 4 * kMebi / kUnit;
  Arena arena(kSmallArenas, 1, context(1), kStart, 4 * kMebi);
  std::vector<bool> used(kUnits, false);
  std::map<std::size_t, std::size_t> live;  // first unit, bytes
  std::mt19937 random(7);
  const auto lowest_fit = [&](std::size_t units) {
    for (std::size_t start = 0, run = 0, unit = 0; unit < kUnits; ++unit) {
      run = used[unit] ? 0 : run + 1;
      if (run == 1) start = unit;
      if (run == units) return start;
    }
    return kUnits;
  };
  for (int step = 0; step < 20000; ++step) {
    // A range of sizes in every power of two, from 1 byte to below 2 MiB.
    const std::size_t bytes = 1 + random() % (std::size_t{1} << (1 + random() % 21));
    const std::size_t units = (bytes + kUnit - 1) / kUnit;
    const std::size_t expected = lowest_fit(units);
    const Address address = arena.allocate(bytes);
    ASSERT_EQ(address, expected == kUnits ? 0 : kStart + expected * kUnit) << bytes << ", " << step;
    if (address != 0) {
      live[expected] = bytes;
      std::fill_n(used.begin() + static_cast<std::ptrdiff_t>(expected), units, true);
    }
    while (!live.empty() && (address == 0 || random() % 2 == 0)) {
      const auto victim =
          std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      const std::size_t count = (victim->second + kUnit - 1) / kUnit;
      arena.release(kStart + victim->first * kUnit, victim->second);
      std::fill_n(used.begin() + static_cast<std::ptrdiff_t>(victim->first), count, false);
      live.erase(victim);
      if (random() % 4 != 0) break;
    }
    ASSERT_EQ(arena.is_empty(), live.empty());
  }
}

TEST(ArenaTest, LargestSmallAllocationFillsTheSmallestArena) {
  Arena arena(kSmallArenas, 1, context(1), kStart, kSmallestMediumBytes);
  EXPECT_EQ(arena.allocate(kSmallestMediumBytes - 1), kStart);
  EXPECT_EQ(arena.allocate(1), 0u);
  arena.release(kStart, kSmallestMediumBytes - 1);
  EXPECT_EQ(arena.allocate(1), kStart);
}

TEST(ArenasTest, ArenaServesOnlyItsContext) {
  Arenas arenas;
  arenas.add(Arena(kSmallArenas, 1, context(1), kStart, 2 * kMebi));
  EXPECT_EQ(arenas.allocate(context(2), 1), 0u);
  EXPECT_EQ(arenas.allocate(context(1), 1), kStart);
  arenas.remove_all_of(context(1));
  EXPECT_EQ(arenas.find(kStart), nullptr);
}

TEST(ArenasTest, RangeOfARemovedArenaIsNotReturnedToAnother) {
  Arenas arenas;
  arenas.add(Arena(kSmallArenas, 1, context(1), kStart, 2 * kMebi));
  const ArenaRange range{1, arenas.allocate(context(1), kMebi), kMebi};
  arenas.remove_all_of(context(1));
  arenas.add(Arena(kSmallArenas, 2, context(1), kStart, 2 * kMebi));
  EXPECT_EQ(arenas.allocate(context(1), kMebi), kStart);
  EXPECT_FALSE(arenas.release(range));
  EXPECT_EQ(arenas.allocate(context(1), kMebi), kStart + kMebi);
}

TEST(ArenasTest, SmallestEmptyArenaOfEachContextStays) {
  Arenas arenas;
  arenas.add(Arena(kSmallArenas, 1, context(1), kStart, 4 * kMebi));
  arenas.add(Arena(kSmallArenas, 2, context(1), kStart + 4 * kMebi, 2 * kMebi));
  arenas.add(Arena(kSmallArenas, 3, context(2), kStart + 6 * kMebi, 2 * kMebi));
  EXPECT_EQ(arenas.remove_empty(false), kStart);
  EXPECT_EQ(arenas.remove_empty(false), 0u);
  EXPECT_EQ(arenas.allocate(context(1), 1), kStart + 4 * kMebi);
  EXPECT_EQ(arenas.remove_empty(true), kStart + 6 * kMebi);
  EXPECT_EQ(arenas.remove_empty(true), 0u);
}

/// Until 4 GiB are live, or with tiny ones a sixteenth of that.
void expect_little_unused(const char* what, const std::function<std::size_t()>& next_bytes,
                          std::size_t most = 64 * kMebi, std::size_t most_percent = 3) {
  Heap heap;
  for (std::size_t bytes = 0; heap.live_bytes() < 4096 * kMebi / (bytes < 64 * kKibi ? 16 : 1);) {
    bytes = next_bytes();
    heap.allocate(bytes);
    const std::size_t unused = heap.arena_bytes() - heap.live_bytes();
    ASSERT_LE(unused, std::max(most, heap.live_bytes() * most_percent / 100))
        << what << ", " << bytes << " of " << heap.live_bytes();
  }
}

TEST(ArenasTest, WithoutFreesAtMost3PercentOr64MiBAreUnused) {
  for (std::size_t bytes = kUnit; bytes < kSmallestMediumBytes;
       bytes += bytes / 8 / kUnit * kUnit + kUnit) {
    expect_little_unused("one size", [&] { return bytes; });
  }
  std::mt19937 random(5);
  expect_little_unused("all sizes", [&] { return 1 + random() % (kSmallestMediumBytes - 1); });
  expect_little_unused(
      "large sizes", [&] { return kMebi + random() % kMebi; }, 72 * kMebi, 4);
  expect_little_unused("powers of two", [&] { return kUnit << random() % 12; });
  expect_little_unused("two sizes", [&] { return random() % 2 == 0 ? 700 * kKibi : 1900 * kKibi; });
}

TEST(ArenasTest, RandomChurnKeepsMostMemoryInUse) {
  Heap heap;
  std::mt19937 random(11);
  std::vector<Address> addresses;
  for (int step = 0; step < 200000; ++step) {
    if (heap.live_bytes() < 256 * kMebi) {
      addresses.push_back(heap.allocate(1 + random() % (std::size_t{1} << (1 + random() % 21))));
    } else {
      std::swap(addresses[random() % addresses.size()], addresses.back());
      heap.free(addresses.back());
      addresses.pop_back();
    }
  }
  EXPECT_LE(heap.arena_bytes(), heap.most_live_bytes() * 3 / 2);
}

/// Until 20 GiB are live, 256 MiB of it in separate allocations.
void expect_little_unused_with_others(const char* what,
                                      const std::function<std::size_t()>& next_bytes,
                                      std::size_t most_percent = 3) {
  constexpr std::size_t kOther = 256 * kMebi;
  Heap heap(kOther);
  std::size_t used = 0;
  while (used < 20 * 1024 * kMebi - kOther) {
    const std::size_t bytes = next_bytes();
    heap.allocate(bytes);
    used += (bytes + 2 * kMebi - 1) / (2 * kMebi) * (2 * kMebi);
    ASSERT_LE(heap.arena_bytes() - used,
              std::max(64 * kMebi, (kOther + heap.arena_bytes()) * most_percent / 100))
        << what << ", " << bytes;
  }
}

TEST(MediumArenasTest, WithoutFreesAtMost3PercentOr64MiBAreUnused) {
  for (std::size_t bytes = 2 * kMebi; bytes <= kLargestMediumBytes; bytes += 2 * kMebi) {
    expect_little_unused_with_others("one size", [&] { return bytes; });
  }
  std::mt19937 random(5);
  expect_little_unused_with_others("all sizes",
                                   [&] { return 2 * kMebi + random() % (14 * kMebi); });
  expect_little_unused_with_others(
      "large sizes", [&] { return 8 * kMebi + random() % (8 * kMebi); }, 7);
  expect_little_unused_with_others(
      "two sizes", [&] { return random() % 2 == 0 ? 6 * kMebi : 14 * kMebi; }, 5);
}

TEST(MediumArenasTest, TenThousandAllocationsNeedFewArenas) {
  constexpr std::size_t kAlone = 128;
  Heap heap(kAlone * 2 * kMebi);
  for (std::size_t i = kAlone; i < 10000; ++i) heap.allocate(2 * kMebi);
  EXPECT_LE(kAlone + heap.arenas(), 500u);
}

TEST(MediumArenasTest, RangesAreAlignedTo2MiBAndReused) {
  Arena arena(kMediumArenas, 1, context(1), kStart, 32 * kMebi);
  EXPECT_EQ(arena.allocate(3 * kMebi), kStart);
  EXPECT_EQ(arena.allocate(16 * kMebi), kStart + 4 * kMebi);
  EXPECT_EQ(arena.allocate(12 * kMebi), kStart + 20 * kMebi);
  EXPECT_EQ(arena.allocate(2 * kMebi), 0u);
  arena.release(kStart + 20 * kMebi, 12 * kMebi);
  arena.release(kStart, 3 * kMebi);
  EXPECT_EQ(arena.allocate(12 * kMebi), kStart + 20 * kMebi);
  arena.release(kStart + 4 * kMebi, 16 * kMebi);
  arena.release(kStart + 20 * kMebi, 12 * kMebi);
  EXPECT_TRUE(arena.is_empty());
}

TEST(MediumArenasTest, SmallAndMediumAllocationsDoNotShareArenas) {
  Arenas arenas;
  arenas.add(Arena(kMediumArenas, 1, context(1), kStart, 32 * kMebi));
  EXPECT_EQ(arenas.allocate(context(1), 2 * kMebi - 1), 0u);
  arenas.add(Arena(kSmallArenas, 2, context(1), kStart + 32 * kMebi, 2 * kMebi));
  EXPECT_EQ(arenas.allocate(context(1), 2 * kMebi - 1), kStart + 32 * kMebi);
  EXPECT_EQ(arenas.allocate(context(1), 2 * kMebi), kStart);
}

TEST(MediumArenasTest, EmptyArenaIsNotKept) {
  Arenas arenas;
  arenas.add(Arena(kMediumArenas, 1, context(1), kStart, 32 * kMebi));
  arenas.add(Arena(kSmallArenas, 2, context(1), kStart + 32 * kMebi, 2 * kMebi));
  EXPECT_EQ(arenas.remove_empty(false), kStart);
  EXPECT_EQ(arenas.remove_empty(false), 0u);
}

/// Robson's adversary: it fills its bytes with blocks of one size, frees all but those that prevent
/// reuse for the next, doubled size, and continues with that size.
TEST(ArenasTest, WorstAllocationOrderStaysWithinTheBound) {
  constexpr std::size_t kLive = 64 * kMebi;
  Heap heap;
  std::size_t kept_offset = 0;  // in bytes, of the bytes that no kept block leaves free
  for (std::size_t bytes = kUnit; bytes < kSmallestMediumBytes; bytes *= 2) {
    while (heap.live_bytes() + bytes <= kLive) heap.allocate(bytes);
    const std::size_t period = 2 * bytes;
    const auto stays = [&](Address address, std::size_t size, std::size_t offset) {
      const std::size_t start = (address - kStart) % period;
      return (offset + period - start) % period < size;
    };
    std::size_t live_if[2] = {};
    for (const auto& [address, size] : heap.live()) {
      for (int choice = 0; choice < 2; ++choice) {
        if (stays(address, size, kept_offset + choice * bytes)) live_if[choice] += size;
      }
    }
    if (live_if[1] < live_if[0]) kept_offset += bytes;
    std::vector<Address> unwanted;
    for (const auto& [address, size] : heap.live()) {
      if (!stays(address, size, kept_offset)) unwanted.push_back(address);
    }
    for (const Address address : unwanted) heap.free(address);
  }
  EXPECT_LE(heap.arena_bytes(), 12 * heap.most_live_bytes());
  EXPECT_GE(heap.arena_bytes(), 2 * heap.most_live_bytes());  // it is an adversary
  RecordProperty("times", std::to_string(static_cast<double>(heap.arena_bytes()) /
                                         static_cast<double>(heap.most_live_bytes())));
}

}  // namespace
}  // namespace gcr::preload

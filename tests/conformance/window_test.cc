// Regions without their own memory: for every size and every speed of the owner,
// their bytes arrive through a window, each slot of which is written only when it is free.
#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>

#include "tests/conformance/conformance_fixture.h"

namespace gcr::test {
namespace {

using transport::kPlaceBytes;
using transport::Place;
using transport::RegionId;

class WindowTest : public ConformanceTest {
 protected:
  static constexpr unsigned kLanes = 2;
  static constexpr std::size_t kPlaces = 8;

  struct Arrival {
    std::uint64_t offset;
    Place place;
  };

  ~WindowTest() override { transfer_.reset(); }

  /// A transfer with one region of the source's length and a window of kPlaces, whose slots
  /// `on_arrived` gets.
  void start_window(transport::OnArrived on_arrived) {
    transfer_ = make({.lanes = kLanes, .max_lanes = kLanes});
    ASSERT_TRUE(ok(receiver().open_window({window_, std::move(on_arrived)})));
    ASSERT_TRUE(ok(receiver().add_windowed_region(kRegion, source_.size())));
    ASSERT_TRUE(ok(transfer_->connect()));
  }

  Status move_on(std::uint64_t offset, const Place& place) {
    const auto bytes = place.bytes();
    std::copy(bytes.begin(), bytes.end(), landed_.begin() + static_cast<std::ptrdiff_t>(offset));
    return {};
  }

  bool as_sent(const Arrival& arrival) const {
    return std::ranges::equal(
        arrival.place.bytes(),
        std::span(source_).subspan(arrival.offset, arrival.place.bytes().size()));
  }

  /// Sends the whole source, in writes of `write_bytes`, from several threads; flushes.
  Status write_all(std::size_t write_bytes) {
    std::atomic<std::size_t> next = 0;
    std::vector<std::unique_ptr<Outcome>> writers;
    for (unsigned i = 0; i < 2 * kLanes; ++i) {
      writers.push_back(std::make_unique<Outcome>([&]() -> Status {
        for (std::size_t at = next.fetch_add(write_bytes); at < source_.size();
             at = next.fetch_add(write_bytes)) {
          const std::size_t length = std::min(write_bytes, source_.size() - at);
          GCR_TRY(channel().write(kRegion, at, std::span(source_).subspan(at, length)));
        }
        return {};
      }));
    }
    for (auto& writer : writers) GCR_TRY(writer->get());
    return channel().flush();
  }

  Bytes source_ = random_bytes(std::min(capabilities().largest_bytes, 48 * kMiB) + 5, 1);
  Bytes window_ = Bytes(kPlaces * kPlaceBytes);
};

TEST_P(WindowTest, RegionLargerThanTheWindowArrives) {
  for (const std::size_t write_bytes : {kPlaceBytes, 3 * kPlaceBytes + 1, std::uint64_t{50'000}}) {
    landed_.assign(source_.size(), std::byte{0});
    start_window([&](RegionId region, std::uint64_t offset, const Place& place) -> Status {
      if (region != kRegion) return Error(Code::kInternal, "another region");
      return move_on(offset, place);
    });
    ASSERT_TRUE(ok(write_all(write_bytes)));
    EXPECT_EQ(landed_, source_) << write_bytes;
    EXPECT_EQ(receiver().statistics().payload_bytes, source_.size());
    transfer_.reset();
  }
}

TEST_P(WindowTest, SlotIsNotReusedUntilReleased) {
  std::mutex mutex;
  std::deque<Arrival> held;
  std::uint64_t wrong = 0;
  const auto settle = [&](std::size_t left) {
    for (; held.size() > left; held.pop_front()) wrong += as_sent(held.front()) ? 0 : 1;
  };
  start_window([&](RegionId, std::uint64_t offset, Place place) -> Status {
    const std::lock_guard lock(mutex);
    held.push_back({offset, std::move(place)});
    settle(kPlaces / kLanes - 1);  // every lane has one
    return {};
  });
  Outcome writing([&] { return write_all(kPlaceBytes); });
  // A flush may wait for the last slots.
  ASSERT_TRUE(becomes_true([&] {
    const std::lock_guard lock(mutex);
    if (receiver().statistics().payload_bytes == source_.size()) settle(0);
    return writing.is_there();
  }));
  ASSERT_TRUE(ok(writing.get()));
  settle(0);
  EXPECT_EQ(wrong, 0U);
}

TEST_P(WindowTest, SenderWaitsForAFreeSlot) {
  std::mutex mutex;
  std::vector<Arrival> held;
  bool holding = true;
  landed_.assign(source_.size(), std::byte{0});
  start_window([&](RegionId, std::uint64_t offset, Place place) -> Status {
    const std::lock_guard lock(mutex);
    if (!holding) return move_on(offset, place);
    held.push_back({offset, std::move(place)});
    return {};
  });
  Outcome writing([&] { return write_all(kPlaceBytes); });
  ASSERT_TRUE(becomes_true([&] {
    const std::lock_guard lock(mutex);
    return held.size() == kPlaces;
  }));
  EXPECT_FALSE(writing.is_there());
  {
    const std::lock_guard lock(mutex);
    EXPECT_EQ(held.size(), kPlaces);
    for (const Arrival& arrival : held) EXPECT_TRUE(ok(move_on(arrival.offset, arrival.place)));
    holding = false;
    held.clear();
  }
  ASSERT_TRUE(ok(writing.get()));
  EXPECT_EQ(landed_, source_);
}

TEST_P(WindowTest, CancelEndsTheWaitForASlot) {
  std::mutex mutex;
  std::vector<Place> held;
  start_window([&](RegionId, std::uint64_t, Place place) -> Status {
    const std::lock_guard lock(mutex);
    held.push_back(std::move(place));
    return {};
  });
  Outcome writing([&] { return write_all(kPlaceBytes); });
  ASSERT_TRUE(becomes_true([&] {
    const std::lock_guard lock(mutex);
    return held.size() == kPlaces;
  }));
  receiver().cancel();
  EXPECT_FALSE(writing.get());
  transfer_.reset();  // before the slots are released
}

TEST_P(WindowTest, ErrorOfTheOwnerReachesTheSender) {
  start_window([](RegionId, std::uint64_t, const Place&) -> Status {
    return Error(Code::kResourceExhausted, "no VRAM left for this chunk");
  });
  EXPECT_TRUE(fails_with(write_and_flush(0, source_), Code::kResourceExhausted, "no VRAM left"));
}

TEST_P(WindowTest, WritesBeyondOrAfterARegionAreRefused) {
  std::atomic<int> arrived = 0;
  const auto count = [&](RegionId, std::uint64_t, const Place&) -> Status {
    ++arrived;
    return {};
  };
  start_window(count);
  const auto beyond = write_and_flush(source_.size() - 9, std::span(source_).first(10));
  EXPECT_TRUE(refused(beyond, Code::kInvalidArgument, "does not fit"));
  transfer_.reset();
  start_window(count);
  ASSERT_TRUE(ok(write_and_flush(0, std::span(source_).first(10))));
  ASSERT_TRUE(ok(receiver().remove_region(kRegion)));
  const auto removed = write_and_flush(0, std::span(source_).first(10));
  EXPECT_TRUE(refused(removed, Code::kNotFound, "region 5"));
  EXPECT_EQ(arrived, 1);
}

TEST_P(WindowTest, RegionsWithTheirOwnMemoryStaySeparate) {
  landed_.assign(source_.size(), std::byte{0});
  start_window(
      [&](RegionId, std::uint64_t offset, const Place& place) { return move_on(offset, place); });
  Bytes other(1000);
  ASSERT_TRUE(ok(receiver().add_region(kRegion + 1, other)));
  ASSERT_TRUE(ok(channel().write(kRegion + 1, 0, std::span(source_).first(1000))));
  ASSERT_TRUE(ok(write_all(kPlaceBytes)));
  EXPECT_TRUE(std::ranges::equal(other, std::span(source_).first(1000)));
  EXPECT_EQ(landed_, source_);
}

TEST_P(WindowTest, BrokenConnectionReleasesItsSlots) {
  if (!capabilities().reconnects) return;
  landed_.assign(source_.size(), std::byte{0});
  start_window(
      [&](RegionId, std::uint64_t offset, const Place& place) { return move_on(offset, place); });
  for (std::size_t i = 0; i < 2 * kPlaces; ++i) {
    transfer_->interrupt_after(static_cast<std::int64_t>(3 * kMiB + i));
    ASSERT_TRUE(ok(write_all(kPlaceBytes)));
  }
  EXPECT_EQ(landed_, source_);
}

TEST_P(WindowTest, WindowNeedsASlotForEachLane) {
  transfer_ = make({.lanes = kLanes, .max_lanes = kPlaces + 1});
  const auto take = [](RegionId, std::uint64_t, const Place&) -> Status { return {}; };
  EXPECT_TRUE(fails_with(receiver().add_windowed_region(kRegion, 1), Code::kInvalidArgument));
  EXPECT_TRUE(
      fails_with(receiver().open_window({window_, take}), Code::kInvalidArgument, "9 lanes"));
  transfer_ = make({.lanes = kLanes, .max_lanes = kPlaces});
  EXPECT_TRUE(ok(receiver().open_window({window_, take})));
  EXPECT_TRUE(fails_with(receiver().open_window({window_, take}), Code::kInvalidArgument));
}

GCR_CONFORMANCE_SUITE(WindowTest);

}  // namespace
}  // namespace gcr::test

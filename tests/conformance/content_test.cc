// After a flush has returned, the sent bytes are in place.
#include <algorithm>
#include <atomic>
#include <mutex>

#include "tests/conformance/conformance_fixture.h"

namespace gcr::test {
namespace {

class ContentTest : public ConformanceTest {
 protected:
  /// Whether exactly `sent` is at `offset`, and nothing around it was changed.
  bool landed_only(std::uint64_t offset, std::span<const std::byte> sent) const {
    const auto at = landed_.begin() + static_cast<std::ptrdiff_t>(offset);
    const auto end = at + static_cast<std::ptrdiff_t>(sent.size());
    const auto untouched = [](std::byte b) { return b == std::byte{0xee}; };
    return std::equal(at, end, sent.begin()) && std::all_of(landed_.begin(), at, untouched) &&
           std::all_of(end, landed_.end(), untouched);
  }
};

TEST_P(ContentTest, EverySizeArrivesAtUnalignedOffsets) {
  const std::size_t sizes[] = {
      1,     2,     31,    33,           4095,     4097,         16351,
      16352, 16353, 65536, 2 * kMiB - 1, 2 * kMiB, 2 * kMiB + 1, 5 * kMiB + 3};
  const Bytes source = random_bytes(6 * kMiB, 1);
  start({}, 6 * kMiB);
  std::uint64_t offset = 1;
  for (const std::size_t size : sizes) {
    std::fill(landed_.begin(), landed_.end(), std::byte{0xee});
    const auto sent = std::span(source).subspan(offset, size);
    ASSERT_TRUE(ok(write_and_flush(offset + 6, sent)));
    EXPECT_TRUE(landed_only(offset + 6, sent)) << size;
    offset += 2;
  }
}

TEST_P(ContentTest, LongWriteOverSeveralLanesArrives) {
  const Bytes source = random_bytes(std::min(capabilities().largest_bytes, 64 * kMiB), 2);
  start({.lanes = 4}, source.size());
  ASSERT_TRUE(ok(write_and_flush(0, source)));
  EXPECT_EQ(landed_, source);
}

TEST_P(ContentTest, WholeRegionArrivesToItsLastByte) {
  const Bytes source = random_bytes(4097, 3);
  start({}, source.size());
  ASSERT_TRUE(ok(write_and_flush(0, source)));
  EXPECT_EQ(landed_, source);
  ASSERT_TRUE(ok(write_and_flush(4096, std::span(source).first(1))));
  EXPECT_EQ(landed_.back(), source.front());
}

TEST_P(ContentTest, EmptyWriteSucceedsAndChangesNothing) {
  start({}, 100);
  EXPECT_TRUE(ok(write_and_flush(50, {})));
  EXPECT_TRUE(ok(channel().flush()));
  EXPECT_TRUE(landed_only(0, {}));
}

TEST_P(ContentTest, ThousandsOfConcurrentSmallWritesArrive) {
  constexpr std::size_t kWrites = 5000;
  constexpr std::size_t kSlot = 200;
  const Bytes source = random_bytes(kWrites * kSlot, 4);
  start({.lanes = 2}, source.size());
  std::atomic<std::size_t> next = 0;
  auto work = [&]() -> Status {
    for (std::size_t i = next++; i < kWrites; i = next++) {
      // Two pieces per slot, of all sizes.
      const std::size_t split = 1 + i % (kSlot - 1);
      const auto slot = std::span(source).subspan(i * kSlot, kSlot);
      GCR_TRY(channel().write(kRegion, i * kSlot, slot.first(split)));
      GCR_TRY(channel().write(kRegion, i * kSlot + split, slot.subspan(split)));
    }
    return {};
  };
  std::vector<std::unique_ptr<Outcome>> workers;
  for (int i = 0; i < 4; ++i) workers.push_back(std::make_unique<Outcome>(work));
  for (auto& worker : workers) EXPECT_TRUE(ok(worker->get()));
  ASSERT_TRUE(ok(channel().flush()));
  EXPECT_EQ(landed_, source);
  EXPECT_EQ(channel().statistics().writes, 2 * kWrites);
  EXPECT_EQ(channel().statistics().payload_bytes, source.size());
  EXPECT_EQ(receiver().statistics().payload_bytes, source.size());
}

TEST_P(ContentTest, LaterWriteWinsAfterAFlush) {
  const Bytes first = random_bytes(3 * kMiB, 5);
  const Bytes second = random_bytes(3 * kMiB, 6);
  start({.lanes = 3}, first.size());
  for (int round = 0; round < 5; ++round) {
    ASSERT_TRUE(ok(write_and_flush(0, first)));
    EXPECT_EQ(landed_, first);
    ASSERT_TRUE(ok(write_and_flush(0, second)));
    EXPECT_EQ(landed_, second);
  }
}

TEST_P(ContentTest, FlushCompletesTheWritesOfEachThread) {
  constexpr std::size_t kPiece = 100'000;
  start({.lanes = 3}, 6 * kPiece);
  auto work = [&](std::size_t place) -> Status {
    for (std::uint64_t round = 0; round < 20; ++round) {
      const Bytes sent = random_bytes(kPiece, place * 100 + round);
      GCR_TRY(write_and_flush(place * kPiece, sent));
      const auto there = landed_.begin() + static_cast<std::ptrdiff_t>(place * kPiece);
      if (!std::equal(sent.begin(), sent.end(), there)) {
        return Error(Code::kDataLoss, "flushed bytes are not in place");
      }
    }
    return {};
  };
  std::vector<std::unique_ptr<Outcome>> workers;
  for (std::size_t place = 0; place < 6; ++place) {
    workers.push_back(std::make_unique<Outcome>([&, place] { return work(place); }));
  }
  for (auto& worker : workers) EXPECT_TRUE(ok(worker->get()));
}

TEST_P(ContentTest, LandedBytesAreReportedOnceBeforeTheFlush) {
  std::mutex mutex;
  std::vector<int> reported(5 * kMiB + 17);
  start({.lanes = 2,
         .on_landed = [&](transport::RegionId region, std::uint64_t offset,
                          std::uint64_t length) -> Status {
           const std::lock_guard lock(mutex);
           if (region != kRegion) return Error(Code::kInternal, "another region");
           const auto at = reported.begin() + static_cast<std::ptrdiff_t>(offset);
           std::for_each(at, at + static_cast<std::ptrdiff_t>(length), [](int& n) { ++n; });
           return {};
         }},
        reported.size());
  const Bytes source = random_bytes(reported.size(), 7);
  ASSERT_TRUE(ok(write_and_flush(0, source)));
  const std::lock_guard lock(mutex);
  EXPECT_TRUE(std::all_of(reported.begin(), reported.end(), [](int n) { return n == 1; }));
}

TEST_P(ContentTest, SeveralRegionsStaySeparate) {
  start({}, 1000);
  Bytes other(1000, std::byte{0});
  ASSERT_TRUE(ok(receiver().add_region(kRegion + 1, other)));
  const Bytes source = random_bytes(1000, 8);
  ASSERT_TRUE(ok(channel().write(kRegion + 1, 0, source)));
  ASSERT_TRUE(ok(channel().flush()));
  EXPECT_EQ(other, source);
  EXPECT_TRUE(landed_only(0, {}));
  ASSERT_TRUE(ok(receiver().remove_region(kRegion + 1)));
}

TEST_P(ContentTest, TenConcurrentTransfersStaySeparate) {
  constexpr std::size_t kBytes = 4 * kMiB + 5;
  auto one = [this](std::uint64_t seed) -> Status {
    const Bytes source = random_bytes(kBytes, seed);
    Bytes target(kBytes);
    auto transfer = make({.lanes = 2});
    GCR_TRY(transfer->receiver().add_region(1, target));
    GCR_TRY(transfer->connect());
    GCR_TRY(transfer->channel().write(1, 0, source));
    GCR_TRY(transfer->channel().flush());
    GCR_TRY(transfer->receiver().health());
    if (target != source) return Error(Code::kDataLoss, "content differs");
    return {};
  };
  std::vector<std::unique_ptr<Outcome>> transfers;
  for (std::uint64_t i = 0; i < 10; ++i) {
    transfers.push_back(std::make_unique<Outcome>([&, i] { return one(100 + i); }));
  }
  for (auto& transfer : transfers) EXPECT_TRUE(ok(transfer->get()));
}

TEST_P(ContentTest, RateLimitCoversAllLanes) {
  constexpr std::uint64_t kRate = 64 * kMiB;
  constexpr std::size_t kPiece = kMiB;
  start({.lanes = 4}, 16 * kPiece);
  channel().limit_rate(kRate);
  const Bytes source = random_bytes(16 * kPiece, 11);
  const auto before = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<Outcome>> writers;
  for (std::size_t writer = 0; writer < 4; ++writer) {
    writers.push_back(std::make_unique<Outcome>([&, writer]() -> Status {
      for (std::size_t piece = writer; piece < 16; piece += 4) {
        GCR_TRY(channel().write(kRegion, piece * kPiece,
                                std::span(source).subspan(piece * kPiece, kPiece)));
      }
      return {};
    }));
  }
  for (auto& writer : writers) ASSERT_TRUE(ok(writer->get()));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - before;
  // The first part is sent at once, fifteen wait for their turn.
  EXPECT_GE(took.count(), 15.0 * kPiece / kRate);
  channel().limit_rate(0);
  ASSERT_TRUE(ok(channel().flush()));
  EXPECT_EQ(landed_, source);
}

TEST_P(ContentTest, LiftingTheLimitReleasesAWaitingWrite) {
  start({.lanes = 1}, 4096);
  channel().limit_rate(1);
  ASSERT_TRUE(ok(channel().write(kRegion, 0, random_bytes(2048, 1))));  // its turn is now
  Outcome held([&] { return channel().write(kRegion, 2048, random_bytes(2048, 2)); });
  EXPECT_FALSE(held.is_there());  // half an hour away
  channel().limit_rate(0);
  EXPECT_TRUE(ok(held.get()));
}

TEST_P(ContentTest, ReceiverIsHealthyAfterTheSenderFinished) {
  start({.lanes = 3}, 1000);
  EXPECT_GE(channel().useful_writers(), 3U);
  ASSERT_TRUE(ok(write_and_flush(0, random_bytes(1000, 9))));
  transfer_->destroy_channel();
  EXPECT_TRUE(ok(receiver().remove_region(kRegion)));
  EXPECT_TRUE(ok(receiver().health()));
}

GCR_CONFORMANCE_SUITE(ContentTest);

}  // namespace
}  // namespace gcr::test

// Connections that are lost and made again: nothing is missed, nothing is reported twice, and
// little is sent twice. For transports that reconnect; the others are tested in failure_test.cc.
#include <algorithm>
#include <atomic>
#include <mutex>

#include "tests/conformance/conformance_fixture.h"

namespace gcr::test {
namespace {

constexpr std::size_t kPiece = 256 * kKiB;

class ReconnectTest : public ConformanceTest {
 protected:
  ReconnectTest() : ConformanceTest(/*loses_peers=*/true) {}
  ~ReconnectTest() override { transfer_.reset(); }  // its threads use what is below

  /// An on_landed that counts how often each piece of `grain` bytes of the region was reported, and
  /// interrupts the network after every further `every` landed bytes (0: never).
  transport::OnLanded counting(std::uint64_t every = 0) {
    return
        [this, every](transport::RegionId, std::uint64_t offset, std::uint64_t length) -> Status {
          {
            const std::lock_guard lock(mutex_);
            for (std::uint64_t i = 0; i < length; ++i) ++reported_[offset + i];
          }
          const std::uint64_t before = landed_bytes_.fetch_add(length);
          if (every != 0 && before / every != (before + length) / every) transfer_->interrupt();
          return {};
        };
  }

  void start_counting(unsigned lanes, std::size_t region_bytes, std::uint64_t every = 0) {
    reported_.assign(region_bytes, 0);
    start({.lanes = lanes, .on_landed = counting(every)}, region_bytes);
  }

  /// Writes `source` to the region in parts, from several threads, each from one buffer that it
  /// overwrites as soon as a write has returned; then flushes.
  Status write_all(std::span<const std::byte> source, std::size_t piece_bytes, unsigned threads) {
    std::atomic<std::size_t> next = 0;
    const auto work = [&]() -> Status {
      Bytes buffer;
      for (std::size_t at = next.fetch_add(piece_bytes); at < source.size();
           at = next.fetch_add(piece_bytes)) {
        const auto piece = source.subspan(at, std::min(piece_bytes, source.size() - at));
        buffer.assign(piece.begin(), piece.end());
        GCR_TRY(channel().write(kRegion, at, buffer));
        std::ranges::fill(buffer, std::byte{0xbb});
      }
      return {};
    };
    std::vector<std::unique_ptr<Outcome>> workers;
    for (unsigned i = 0; i < threads; ++i) workers.push_back(std::make_unique<Outcome>(work));
    Status status;
    for (auto& worker : workers) {
      const Status one = worker->get();
      if (status) status = one;
    }
    GCR_TRY(status);
    return channel().flush();
  }

  testing::AssertionResult each_byte_was_reported_once() {
    const std::lock_guard lock(mutex_);
    const auto wrong = std::ranges::find_if(reported_, [](auto n) { return n != 1; });
    if (wrong == reported_.end()) return testing::AssertionSuccess();
    return testing::AssertionFailure()
           << "byte " << wrong - reported_.begin() << " was reported " << int{*wrong} << " times";
  }

  std::mutex mutex_;
  std::vector<std::uint8_t> reported_;  ///< guarded by mutex_
  std::atomic<std::uint64_t> landed_bytes_ = 0;
};

TEST_P(ReconnectTest, TransferContinuesAfterACut) {
  const Bytes source = random_bytes(32 * kMiB, 1);
  start_counting(4, source.size());
  transfer_->interrupt_after(static_cast<std::int64_t>(source.size() / 2));
  ASSERT_TRUE(ok(write_all(source, kPiece, channel().useful_writers())));
  EXPECT_EQ(landed_, source);
  EXPECT_TRUE(each_byte_was_reported_once());
  const transport::Statistics sent = channel().statistics();
  EXPECT_GE(sent.reconnections, 1U);
  EXPECT_LE(sent.reconnections, 4U);
  EXPECT_EQ(sent.payload_bytes, source.size());
  // Only data in flight is resent: a few parts for each lane.
  EXPECT_LE(sent.wire_bytes, source.size() + 4 * 4 * kPiece + source.size() / 100);
  EXPECT_TRUE(ok(receiver().health()));
}

TEST_P(ReconnectTest, TransferContinuesAfterManyCuts) {
  const Bytes source = random_bytes(16 * kMiB, 2);
  start_counting(3, source.size(), 2 * kMiB);
  ASSERT_TRUE(ok(write_all(source, kPiece, channel().useful_writers())));
  EXPECT_EQ(landed_, source);
  EXPECT_TRUE(each_byte_was_reported_once());
  EXPECT_GE(channel().statistics().reconnections, 4U);
  EXPECT_TRUE(ok(receiver().health()));
}

TEST_P(ReconnectTest, ReturnedSmallWritesAreNotLost) {
  const Bytes source = random_bytes(kMiB, 3);
  start_counting(2, source.size(), kMiB / 5);
  ASSERT_TRUE(ok(write_all(source, 333, 3)));
  EXPECT_EQ(landed_, source);
  EXPECT_TRUE(each_byte_was_reported_once());
  EXPECT_GE(channel().statistics().reconnections, 1U);
}

TEST_P(ReconnectTest, LargeWriteSurvivesACut) {
  const Bytes source = random_bytes(24 * kMiB, 4);
  start_counting(2, source.size(), 7 * kMiB);
  ASSERT_TRUE(ok(write_and_flush(0, source)));
  EXPECT_EQ(landed_, source);
  EXPECT_TRUE(each_byte_was_reported_once());
}

TEST_P(ReconnectTest, CutWithinAWriteIsRepaired) {
  const Bytes source = random_bytes(4 * kMiB, 5);
  for (const std::int64_t bytes :
       {1, 31, 32, 33, 5000, 2'097'183, 2'097'184, 2'097'185, 3'000'000}) {
    start_counting(2, source.size());
    transfer_->interrupt_after(bytes);
    Outcome outcome([&] { return write_and_flush(0, source); });
    EXPECT_TRUE(ok(outcome.get())) << bytes;
    EXPECT_EQ(landed_, source) << bytes;
    EXPECT_TRUE(each_byte_was_reported_once()) << bytes;
    transfer_.reset();
  }
}

TEST_P(ReconnectTest, CutBetweenWriteAndFlushIsRepaired) {
  const Bytes source = random_bytes(5000, 6);
  start_counting(2, source.size());
  ASSERT_TRUE(ok(channel().write(kRegion, 0, source)));
  transfer_->interrupt();
  Outcome flush([&] { return channel().flush(); });
  ASSERT_TRUE(ok(flush.get()));
  EXPECT_EQ(landed_, source);
  EXPECT_TRUE(each_byte_was_reported_once());
}

TEST_P(ReconnectTest, CutOfAnIdleTransferIsRepaired) {
  const Bytes source = random_bytes(5000, 7);
  start_counting(2, source.size());
  transfer_->interrupt();
  Outcome outcome([&] { return write_and_flush(0, source); });
  ASSERT_TRUE(ok(outcome.get()));
  EXPECT_EQ(landed_, source);
  EXPECT_TRUE(each_byte_was_reported_once());
  EXPECT_TRUE(ok(receiver().health()));
}

TEST_P(ReconnectTest, CutWithASlowApplicationIsRepaired) {
  Latch entered(1);
  Latch opened(1);
  std::atomic<int> calls = 0;
  start({.on_landed = [&](auto, auto, auto) -> Status {
          if (calls++ == 0) {
            entered.count_down();
            opened.wait();
          }
          return {};
        }},
        5000);
  const Bytes source = random_bytes(5000, 8);
  Outcome outcome([&] { return write_and_flush(0, source); });
  entered.wait();
  transfer_->interrupt();
  EXPECT_FALSE(outcome.is_there());
  opened.count_down();
  EXPECT_TRUE(ok(outcome.get()));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(landed_, source);
  transfer_.reset();  // before the latches
}

TEST_P(ReconnectTest, TenCutTransfersStaySeparate) {
  constexpr std::size_t kBytes = 2 * kMiB + 5;
  const auto one = [this](std::uint64_t seed) -> Status {
    const Bytes source = random_bytes(kBytes, seed);
    Bytes target(kBytes);
    auto transfer = make({.lanes = 2});
    GCR_TRY(transfer->receiver().add_region(1, target));
    GCR_TRY(transfer->connect());
    transfer->interrupt_after(static_cast<std::int64_t>(seed * 100'000));
    GCR_TRY(transfer->channel().write(1, 0, source));
    GCR_TRY(transfer->channel().flush());
    GCR_TRY(transfer->receiver().health());
    if (target != source) return Error(Code::kDataLoss, "content differs");
    return {};
  };
  std::vector<std::unique_ptr<Outcome>> transfers;
  for (std::uint64_t i = 0; i < 10; ++i) {
    transfers.push_back(std::make_unique<Outcome>([&, i] { return one(i + 1); }));
  }
  for (auto& transfer : transfers) EXPECT_TRUE(ok(transfer->get()));
}

TEST_P(ReconnectTest, PermanentCutEndsTheTransfer) {
  const Bytes source = random_bytes(4 * kMiB, 9);
  start_counting(2, source.size(), 6 * kMiB);
  ASSERT_TRUE(ok(write_and_flush(0, source)));
  transfer_->cut_after(kMiB);
  Outcome writer([&] { return write_forever(source, 1); });
  EXPECT_TRUE(fails_with(writer.get(), Code::kUnavailable, transfer_->address()));
  EXPECT_TRUE(becomes_true([&] { return !receiver().health(); }));
}

TEST_P(ReconnectTest, CancelBySenderEndsTheWaitForTheNetwork) {
  start({.lanes = 2}, 1000);
  transfer_->cut();
  Latch writing(1);
  Outcome writer([&]() -> Status {
    writing.count_down();
    return write_forever(random_bytes(1000, 10), 1);
  });
  writing.wait();
  channel().cancel();
  EXPECT_TRUE(fails_with(writer.get(), Code::kCancelled));
  EXPECT_TRUE(fails_with(channel().flush(), Code::kCancelled));
}

TEST_P(ReconnectTest, ApplicationErrorIsNotRetried) {
  start({.lanes = 2,
         .on_landed = [&](auto, auto, auto) -> Status {
           transfer_->interrupt();  // its message may be lost with the connection
           return Error(Code::kResourceExhausted, "no VRAM left for this chunk");
         }},
        1000);
  Outcome outcome([&] { return write_and_flush(0, random_bytes(10, 11)); });
  EXPECT_TRUE(fails_with(outcome.get(), Code::kResourceExhausted, "no VRAM left"));
  EXPECT_TRUE(fails_with(receiver().health(), Code::kResourceExhausted, "no VRAM left"));
}

std::vector<const TransportUnderTest*> those_that_reconnect() {
  auto transports = transports_under_test();
  std::erase_if(transports, [](const auto* one) { return !one->capabilities().reconnects; });
  return transports;
}

INSTANTIATE_TEST_SUITE_P(Conformance, ReconnectTest, testing::ValuesIn(those_that_reconnect()),
                         [](const auto& info) { return info.param->name(); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ReconnectTest);

}  // namespace
}  // namespace gcr::test

// Lost peers and networks, applications that fail or are slow, and cancellation: every call ends in
// bounded time, with an error that names the cause.
#include <condition_variable>
#include <mutex>

#include "tests/conformance/conformance_fixture.h"

namespace gcr::test {
namespace {

class FailureTest : public ConformanceTest {
 protected:
  FailureTest() : ConformanceTest(/*loses_peers=*/true) {}
  ~FailureTest() override {
    release();
    transfer_.reset();  // its threads use the latches
  }

  /// An on_landed that signals its first call, and then waits for release().
  transport::OnLanded blocking() {
    return [this](transport::RegionId, std::uint64_t, std::uint64_t) -> Status {
      std::call_once(once_, [this] { entered_.count_down(); });
      opened_.wait();
      return {};
    };
  }
  void release() {
    if (!released_.exchange(true)) opened_.count_down();
  }

  /// Needs the receiver.
  static std::size_t much() { return capabilities().more_than_buffers; }

  std::once_flag once_;
  Latch entered_{1};
  Latch opened_{1};
  std::atomic<bool> released_ = false;
};

TEST_P(FailureTest, CutBeforeAWriteFailsWriteOrFlush) {
  start({.lanes = 2}, 1000);
  transfer_->cut();
  Outcome outcome([&] { return write_and_flush(0, random_bytes(1000, 1)); });
  EXPECT_TRUE(fails_with(outcome.get(), Code::kUnavailable, transfer_->address()));
  EXPECT_TRUE(becomes_true([&] { return !receiver().health(); }));
  EXPECT_TRUE(fails_with(receiver().health(), Code::kUnavailable));
}

TEST_P(FailureTest, CutWithinAWriteFailsIt) {
  const Bytes source = random_bytes(4 * kMiB, 2);
  for (const std::int64_t bytes : {1, 5000, 3'000'000}) {
    start({.lanes = 2}, source.size());
    transfer_->cut_after(bytes);
    Outcome outcome([&] { return write_and_flush(0, source); });
    EXPECT_TRUE(fails_with(outcome.get(), Code::kUnavailable)) << bytes;
    EXPECT_TRUE(becomes_true([&] { return !receiver().health(); })) << bytes;
    transfer_.reset();
  }
}

TEST_P(FailureTest, CutAfterAWriteFailsTheFlush) {
  start({.on_landed = blocking()}, 1000);
  const Bytes source = random_bytes(1000, 3);
  ASSERT_TRUE(ok(channel().write(kRegion, 0, source)));
  entered_.wait();
  transfer_->cut();
  Outcome outcome([&] { return channel().flush(); });
  EXPECT_TRUE(fails_with(outcome.get(), Code::kUnavailable));
  release();
}

TEST_P(FailureTest, DestroyedReceiverFailsARunningWrite) {
  Latch some_landed(3);
  start({.on_landed = [&](auto, auto, auto) -> Status {
          if (!some_landed.try_wait()) some_landed.count_down();
          return {};
        }},
        4 * kMiB);
  const Bytes source = random_bytes(4 * kMiB, 4);
  Outcome writer([&] { return write_forever(source, 1); });
  some_landed.wait();
  transfer_->destroy_receiver();
  EXPECT_TRUE(fails_with(writer.get(), Code::kUnavailable));
}

TEST_P(FailureTest, StalledNetworkFailsAWriteWithinThePeerTimeout) {
  start({}, much());
  const Bytes source = random_bytes(much(), 5);
  transfer_->stall();
  Outcome writer([&] { return write_and_flush(0, source); });
  EXPECT_TRUE(fails_with(writer.get(), Code::kUnavailable));
}

TEST_P(FailureTest, SlowApplicationSlowsTheSender) {
  start({.lanes = 2, .on_landed = blocking()}, 8 * kMiB);
  const Bytes source = random_bytes(8 * kMiB, 6);
  Outcome writer([&] { return write_and_flush(0, source); });
  entered_.wait();
  EXPECT_FALSE(writer.is_there());
  release();
  EXPECT_TRUE(ok(writer.get()));
  EXPECT_EQ(landed_, source);
}

TEST_P(FailureTest, ApplicationErrorReachesTheSender) {
  start({.lanes = 2,
         .on_landed = [](auto, auto, auto) -> Status {
           return Error(Code::kResourceExhausted, "no VRAM left for this chunk");
         }},
        1000);
  EXPECT_TRUE(fails_with(write_and_flush(0, random_bytes(10, 7)), Code::kResourceExhausted,
                         "the receiver reports: no VRAM left for this chunk"));
  EXPECT_TRUE(fails_with(receiver().health(), Code::kResourceExhausted, "no VRAM left"));
}

TEST_P(FailureTest, ApplicationErrorEndsALongWriteEarly) {
  start({.on_landed = [](auto, auto, auto) -> Status {
          return Error(Code::kDataLoss, "the first frame is bad");
        }},
        much());
  const Bytes source = random_bytes(much(), 8);
  Outcome writer([&] { return write_forever(source, 1); });
  EXPECT_TRUE(fails_with(writer.get(), Code::kDataLoss, "the first frame is bad"));
}

TEST_P(FailureTest, CancelBySenderEndsWritesAndFlushes) {
  start({.lanes = 2, .on_landed = blocking()}, 3 * much());
  const Bytes source = random_bytes(much(), 9);
  Outcome first([&] { return write_and_flush(0, source); });
  Outcome second([&] { return write_and_flush(much(), source); });
  Outcome third([&] { return write_and_flush(2 * much(), source); });
  entered_.wait();
  channel().cancel();
  EXPECT_TRUE(fails_with(first.get(), Code::kCancelled));
  EXPECT_TRUE(fails_with(second.get(), Code::kCancelled));
  EXPECT_TRUE(fails_with(third.get(), Code::kCancelled));
  EXPECT_TRUE(fails_with(channel().flush(), Code::kCancelled));
  release();
  EXPECT_TRUE(becomes_true([&] { return !receiver().health(); }));
}

TEST_P(FailureTest, CancelBySenderEndsAStalledFlush) {
  start({}, 1000);
  const Bytes source = random_bytes(1000, 10);
  ASSERT_TRUE(ok(write_and_flush(0, source)));  // the first write may need the receiver
  transfer_->stall();
  Latch flushing(1);
  Outcome outcome([&]() -> Status {
    const Status written = channel().write(kRegion, 0, source);
    flushing.count_down();
    GCR_TRY(written);
    return channel().flush();
  });
  flushing.wait();
  channel().cancel();
  EXPECT_TRUE(fails_with(outcome.get(), Code::kCancelled));
}

TEST_P(FailureTest, CancelByReceiverEndsTheSendersWrite) {
  Latch landed(1);
  std::once_flag once;
  start({.lanes = 2,
         .on_landed = [&](auto, auto, auto) -> Status {
           std::call_once(once, [&] { landed.count_down(); });
           return {};
         }},
        8 * kMiB);
  const Bytes source = random_bytes(4 * kMiB, 11);
  Outcome writer([&] { return write_forever(source, 2); });
  landed.wait();
  receiver().cancel();
  EXPECT_FALSE(writer.get());
  EXPECT_TRUE(fails_with(receiver().health(), Code::kCancelled));
  EXPECT_TRUE(ok(receiver().remove_region(kRegion)));
}

TEST_P(FailureTest, RemovingARegionWaitsForTheWriteIntoIt) {
  start({.on_landed = blocking()}, 1000);
  const Bytes source = random_bytes(1000, 12);
  ASSERT_TRUE(ok(channel().write(kRegion, 0, source)));
  entered_.wait();
  Outcome removal([&] { return receiver().remove_region(kRegion); });
  EXPECT_FALSE(removal.is_there());
  release();
  EXPECT_TRUE(ok(removal.get()));
}

TEST_P(FailureTest, LostSenderIsSeenByTheReceiver) {
  start({.lanes = 2}, 1000);
  transfer_->cut();
  EXPECT_TRUE(becomes_true([&] { return !receiver().health(); }));
  EXPECT_TRUE(fails_with(receiver().health(), Code::kUnavailable));
}

TEST_P(FailureTest, ConnectingThroughACutNetworkFails) {
  prepare({}, 1000);
  transfer_->cut();
  Outcome outcome([&] { return transfer_->connect(); });
  EXPECT_TRUE(fails_with(outcome.get(), Code::kUnavailable));
}

GCR_CONFORMANCE_SUITE(FailureTest);

}  // namespace
}  // namespace gcr::test

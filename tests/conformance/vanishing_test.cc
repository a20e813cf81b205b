// A peer that is lost, at every stage of a transfer: the other end reports it within its timeout,
// and ends. A dead process and a disconnected machine make no difference.

#include "tests/conformance/conformance_fixture.h"

namespace gcr::test {
namespace {

class VanishingTest : public ConformanceTest {
 protected:
  VanishingTest() : ConformanceTest(/*loses_peers=*/true) {}
  ~VanishingTest() override {
    release();
    transfer_.reset();  // its threads use the latches
  }

  /// An on_landed that signals its first call, and then waits for release().
  transport::OnLanded blocking() {
    return [this](auto, auto, auto) -> Status {
      if (!entered_.try_wait()) entered_.count_down();
      opened_.wait();
      return {};
    };
  }
  void release() {
    if (!opened_.try_wait()) opened_.count_down();
  }

  testing::AssertionResult is_gone(const Status& status) const {
    return fails_with(status, Code::kUnavailable, transfer_->address());
  }

  Latch entered_{1};
  Latch opened_{1};
};

TEST_P(VanishingTest, ReceiverLostBeforeTheConnectIsSeen) {
  prepare({}, 1000);
  transfer_->destroy_receiver();
  Outcome connecting([&] { return transfer_->connect(); });
  EXPECT_FALSE(connecting.get());
}

TEST_P(VanishingTest, ReceiverLostDuringTheConnectIsSeen) {
  prepare({}, 1000);
  transfer_->stall();
  Outcome connecting([&] { return transfer_->connect(); });
  EXPECT_FALSE(connecting.get());
  EXPECT_TRUE(ok(receiver().health()));  // it never had a peer
}

TEST_P(VanishingTest, ReceiverLostBeforeTheFirstWriteIsSeen) {
  start({.lanes = 2}, 1000);
  transfer_->destroy_receiver();
  Outcome writing([&] { return write_and_flush(0, random_bytes(1000, 1)); });
  EXPECT_TRUE(is_gone(writing.get()));
}

TEST_P(VanishingTest, ReceiverLostBetweenWriteAndFlushIsSeen) {
  start({.lanes = 2}, 1000);
  ASSERT_TRUE(ok(channel().write(kRegion, 0, random_bytes(1000, 2))));
  transfer_->destroy_receiver();
  Outcome flush([&] { return channel().flush(); });
  Outcome later([&] { return write_and_flush(0, random_bytes(1000, 3)); });
  (void)flush.get();  // the bytes may have landed before
  EXPECT_TRUE(is_gone(later.get()));
}

TEST_P(VanishingTest, ReceiverLostInAFlushIsSeen) {
  start({.on_landed = blocking()}, 1000);
  ASSERT_TRUE(ok(channel().write(kRegion, 0, random_bytes(1000, 4))));
  entered_.wait();
  Outcome flush([&] { return channel().flush(); });
  EXPECT_FALSE(flush.is_there());
  transfer_->cut();
  EXPECT_TRUE(is_gone(flush.get()));
}

TEST_P(VanishingTest, ReceiverLostBeforeTheGoodbyeDoesNotBlock) {
  start({.lanes = 2}, 1000);
  ASSERT_TRUE(ok(write_and_flush(0, random_bytes(1000, 5))));
  transfer_->destroy_receiver();
  Outcome goodbye([&]() -> Status {
    transfer_->destroy_channel();
    return {};
  });
  EXPECT_TRUE(ok(goodbye.get()));
}

TEST_P(VanishingTest, ReceiverHostLostBeforeTheGoodbyeDoesNotBlock) {
  start({.lanes = 2}, 1000);
  ASSERT_TRUE(ok(write_and_flush(0, random_bytes(1000, 6))));
  transfer_->stall();
  Outcome goodbye([&]() -> Status {
    transfer_->destroy_channel();
    return {};
  });
  EXPECT_TRUE(ok(goodbye.get()));
}

TEST_P(VanishingTest, SenderLostBeforeTheConnectIsHarmless) {
  prepare({}, 1000);
  Outcome goodbye([&]() -> Status {
    transfer_->destroy_receiver();
    return {};
  });
  EXPECT_TRUE(ok(goodbye.get()));
}

TEST_P(VanishingTest, SenderLostInAWriteIsSeen) {
  const std::uint64_t much = capabilities().more_than_buffers;
  start({.lanes = 2}, much);
  transfer_->cut_after(static_cast<std::int64_t>(much / 2));
  const Bytes source = random_bytes(much, 7);
  Outcome writing([&] { return write_and_flush(0, source); });
  EXPECT_TRUE(becomes_true([&] { return !receiver().health(); }));
  EXPECT_TRUE(fails_with(receiver().health(), Code::kUnavailable));
  EXPECT_TRUE(ok(receiver().remove_region(kRegion)));
  EXPECT_TRUE(is_gone(writing.get()));
}

TEST_P(VanishingTest, SenderLostWithASlowApplicationIsSeen) {
  start({.lanes = 2, .on_landed = blocking()}, 1000);
  ASSERT_TRUE(ok(channel().write(kRegion, 0, random_bytes(1000, 8))));
  entered_.wait();
  transfer_->cut();
  release();
  EXPECT_TRUE(becomes_true([&] { return !receiver().health(); }));
  EXPECT_TRUE(fails_with(receiver().health(), Code::kUnavailable));
  EXPECT_TRUE(ok(receiver().remove_region(kRegion)));
}

GCR_CONFORMANCE_SUITE(VanishingTest);

}  // namespace
}  // namespace gcr::test

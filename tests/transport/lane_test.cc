// The receiver's lanes: they outlive their connections, and have one at a time.
#include <future>
#include <latch>
#include <memory>

#include "tests/transport/raw_peer.h"

namespace gcr::transport {
namespace {

Bytes write_frame(std::uint64_t sequence, std::uint64_t offset, unsigned char value) {
  return frame({.type = FrameType::kWrite,
                .asks = true,
                .region = kRegion,
                .length_bytes = 10,
                .offset = offset,
                .sequence = sequence},
               Bytes(10, std::byte{value}));
}

class LaneTest : public RawSenderTest {
 protected:
  explicit LaneTest(TcpReceiverOptions options = {}) : RawSenderTest(std::move(options)) {}

  /// The number of landed frames in the receiver's frame of `type`.
  static std::uint64_t landed(const RawPeer& peer, FrameType type) {
    const auto header = peer.receive_header();
    EXPECT_TRUE(header && header->type == type);
    return header ? header->sequence : ~std::uint64_t{0};
  }

  std::uint64_t enter_again(RawPeer& peer) {
    peer = connect();
    peer.send(hello_frame());
    return landed(peer, FrameType::kWelcome);
  }
};

TEST_F(LaneTest, NextWelcomeReportsLandedFrames) {
  RawPeer peer = enter();
  peer.send(write_frame(0, 0, 1));
  EXPECT_EQ(landed(peer, FrameType::kLanded), 1U);
  peer.send(write_frame(1, 10, 2));
  EXPECT_EQ(landed(peer, FrameType::kLanded), 2U);
  EXPECT_EQ(enter_again(peer), 2U);
  peer.send(write_frame(2, 20, 3));
  EXPECT_EQ(landed(peer, FrameType::kLanded), 3U);
  EXPECT_EQ(landed_, 3);
  EXPECT_EQ(receiver_->statistics().reconnections, 1U);
  EXPECT_TRUE(receiver_->health());
}

TEST_F(LaneTest, PartialFrameIsResentWhole) {
  RawPeer peer = enter();
  Bytes half = write_frame(0, 0, 1);
  half.resize(half.size() - 1);
  peer.send(half);
  EXPECT_EQ(enter_again(peer), 0U);
  EXPECT_EQ(landed_, 0);
  peer.send(write_frame(0, 0, 1));
  EXPECT_EQ(landed(peer, FrameType::kLanded), 1U);
  EXPECT_EQ(landed_, 1);
  EXPECT_EQ(region_[9], std::byte{1});
}

TEST_F(LaneTest, NextConnectionReplacesAStaleOne) {
  RawPeer first = enter();
  RawPeer second = connect();
  second.send(hello_frame());
  EXPECT_EQ(landed(second, FrameType::kWelcome), 0U);
  EXPECT_FALSE(first.receive_header());
  EXPECT_EQ(receiver_->lanes(), 1U);
  second.send(write_frame(0, 0, 1));
  EXPECT_EQ(landed(second, FrameType::kLanded), 1U);
}

TEST_F(LaneTest, RepeatedFrameIsAProtocolError) {
  RawPeer peer = enter();
  peer.send(write_frame(0, 0, 1));
  EXPECT_EQ(landed(peer, FrameType::kLanded), 1U);
  EXPECT_EQ(enter_again(peer), 1U);
  peer.send(write_frame(0, 0, 2));
  EXPECT_EQ(peer.receive_error().code(), Code::kProtocol);
  EXPECT_EQ(landed_, 1);
  EXPECT_EQ(region_[0], std::byte{1});
}

TEST_F(LaneTest, OtherSendersAndImpossibleLanesAreRefused) {
  const RawPeer friendly = enter();
  const std::pair<Hello, Code> strangers[] = {
      {{.lane = 0, .lanes = 2, .session = Uuid::random(), .token = "token"},
       Code::kPermissionDenied},
      {{.lane = 2, .lanes = 3, .session = kSession, .token = "token"}, Code::kProtocol},
      {{.lane = 0, .lanes = 1, .session = kSession, .token = "token"}, Code::kProtocol},
      {{.lane = 2, .lanes = 2, .session = kSession, .token = "token"}, Code::kProtocol},
      {{.lane = 0xffff, .lanes = 2, .session = kSession, .token = "token"}, Code::kProtocol},
  };
  for (const auto& [hello, code] : strangers) {
    const RawPeer stranger = connect();
    stranger.send(hello_frame(hello));
    EXPECT_EQ(stranger.receive_error().code(), code);
  }
  friendly.send(write_frame(0, 0, 1));
  EXPECT_EQ(landed(friendly, FrameType::kLanded), 1U);
  EXPECT_TRUE(receiver_->health());
}

TEST_F(LaneTest, GoodbyeOnOneLaneEndsTheTransfer) {
  const RawPeer first = enter(0);
  {
    const RawPeer second = enter(1);
    first.send(frame({.type = FrameType::kEnd}));
    EXPECT_FALSE(first.receive_header());
  }
  EXPECT_TRUE(becomes_true([&] { return receiver_->lanes() == 0; }));
  EXPECT_TRUE(receiver_->health());
}

class ShortWindowTest : public LaneTest {
 protected:
  ShortWindowTest() : LaneTest({.reconnect_window = std::chrono::milliseconds(50)}) {}
};

TEST_F(ShortWindowTest, PermanentlyLostLaneBreaksTheTransfer) {
  { const RawPeer peer = enter(); }
  EXPECT_TRUE(becomes_true([&] { return !receiver_->health(); }));
  const Error error = receiver_->health().error();
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_NE(error.message().find("lane 0 of 2"), std::string::npos) << error.message();
  EXPECT_NE(error.message().find("closed"), std::string::npos) << error.message();
  const RawPeer late = connect();
  late.send(hello_frame());
  EXPECT_EQ(late.receive_error().code(), Code::kUnavailable);
}

TEST_F(ShortWindowTest, ConnectedLaneIsNotLost) {
  const RawPeer first = enter();
  const RawPeer second = connect();
  second.send(hello_frame());
  EXPECT_EQ(landed(second, FrameType::kWelcome), 0U);
  // The first lane that is lost permanently breaks the transfer.
  { const RawPeer other = enter(1); }
  EXPECT_TRUE(becomes_true([&] { return !receiver_->health(); }));
  EXPECT_NE(receiver_->health().error().message().find("lane 1 of 2"), std::string::npos)
      << receiver_->health().error().message();
}

/// A receiver with a slow application.
class BusyLaneTest : public LaneTest {
 protected:
  /// Outlives the receiver's threads.
  struct Latches {
    std::latch entered{1};
    std::latch opened{1};
  };

  BusyLaneTest() : BusyLaneTest(std::make_shared<Latches>()) {}

  const std::shared_ptr<Latches> latches_;

 private:
  explicit BusyLaneTest(const std::shared_ptr<Latches>& latches)
      : LaneTest({.on_landed = [latches](auto, auto, auto) -> Status {
          latches->entered.count_down();
          latches->opened.wait();
          return {};
        }}),
        latches_(latches) {}
};

TEST_F(BusyLaneTest, NextConnectionWaitsForALandingFrame) {
  RawPeer first = enter();
  first.send(write_frame(0, 0, 1));
  latches_->entered.wait();
  RawPeer second = connect();
  second.send(hello_frame());
  EXPECT_FALSE(first.receive_header());  // ended already
  auto welcome =
      std::async(std::launch::async, [&] { return landed(second, FrameType::kWelcome); });
  EXPECT_EQ(welcome.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  latches_->opened.count_down();
  EXPECT_EQ(welcome.get(), 1U);
  EXPECT_EQ(landed_, 1);
}

TEST_F(BusyLaneTest, NewestConnectionGetsTheLane) {
  const RawPeer first = enter();
  first.send(write_frame(0, 0, 1));
  latches_->entered.wait();
  const RawPeer second = connect();
  second.send(hello_frame());
  EXPECT_FALSE(first.receive_header());
  const RawPeer third = connect();
  third.send(hello_frame());
  EXPECT_EQ(second.receive_error().code(), Code::kUnavailable);
  latches_->opened.count_down();
  EXPECT_EQ(landed(third, FrameType::kWelcome), 1U);
  EXPECT_TRUE(receiver_->health());
}

}  // namespace
}  // namespace gcr::transport

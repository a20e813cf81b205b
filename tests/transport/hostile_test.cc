// Peers that break the TCP transport's rules on purpose: raw sockets against both ends.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <future>
#include <vector>

#include "tests/transport/raw_peer.h"

namespace gcr::transport {
namespace {

using test::connect_loopback;
using test::LoopbackListener;

/// A receiver for which the loss of a connection is final.
class HostileSenderTest : public RawSenderTest {
 protected:
  explicit HostileSenderTest(TcpReceiverOptions options = {})
      : RawSenderTest(without_window(std::move(options))) {}

 private:
  static TcpReceiverOptions without_window(TcpReceiverOptions options) {
    options.reconnect_window = std::chrono::milliseconds(0);
    return options;
  }
};

struct Hostility {
  const char* name;
  Bytes bytes;
  Code code;
  const char* text;
};

class HostileFrameTest : public HostileSenderTest, public testing::WithParamInterface<Hostility> {};

TEST_P(HostileFrameTest, IsRefusedWithItsReason) {
  const RawPeer peer = enter();
  peer.send(GetParam().bytes);
  const Error error = peer.receive_error();
  EXPECT_EQ(error.code(), GetParam().code) << error.message();
  EXPECT_NE(error.message().find(GetParam().text), std::string::npos) << error.message();
  expect_untouched();
  EXPECT_TRUE(becomes_true([&] { return !receiver_->health(); }));
  EXPECT_EQ(receiver_->health().error().code(), GetParam().code);
}

Bytes with_byte(Bytes bytes, std::size_t at, unsigned value) {
  bytes[at] = static_cast<std::byte>(value);
  return bytes;
}

FrameHeader write_header(std::uint64_t offset, std::uint32_t length) {
  return {.type = FrameType::kWrite, .region = kRegion, .length_bytes = length, .offset = offset};
}

INSTANTIATE_TEST_SUITE_P(
    Frames, HostileFrameTest,
    testing::Values(
        Hostility{"NoFrame", Bytes(kHeaderBytes, std::byte{'x'}), Code::kProtocol, "not a frame"},
        Hostility{"UnknownType", with_byte(frame(write_header(0, 1)), 4, 99), Code::kProtocol,
                  "unknown type 99"},
        Hostility{"ZeroLength", frame(write_header(0, 0)), Code::kProtocol, "with 0 bytes"},
        Hostility{"OversizedLength", frame(write_header(0, kMaxFramePayloadBytes + 1)),
                  Code::kProtocol, "bytes"},
        Hostility{"HugestLength", frame(write_header(0, ~0U)), Code::kProtocol, "4294967295"},
        Hostility{"BehindTheEnd", frame(write_header(999, 2), Bytes(2)), Code::kInvalidArgument,
                  "does not fit"},
        Hostility{"OffsetOverflow", frame(write_header(~std::uint64_t{0} - 1, 5), Bytes(5)),
                  Code::kInvalidArgument, "does not fit"},
        Hostility{"OffsetThatWrapsIntoTheRegion",
                  frame(write_header(~std::uint64_t{0} - 99, 200), Bytes(200)),
                  Code::kInvalidArgument, "does not fit"},
        Hostility{"OutOfSequence", frame({.type = FrameType::kFlush, .sequence = 7}),
                  Code::kProtocol, "out of sequence"},
        Hostility{"SecondHello", hello_frame(), Code::kProtocol, "type 1"},
        Hostility{"TheReceiversOwnWord", frame({.type = FrameType::kLanded}), Code::kProtocol,
                  "type 5"},
        Hostility{"ErrorFrame", frame({.type = FrameType::kError, .length_bytes = 2}, Bytes(2)),
                  Code::kProtocol, "type 6"}),
    [](const auto& info) { return info.param.name; });

TEST_F(HostileSenderTest, TruncatedHeaderBreaksTheLane) {
  const RawPeer peer = enter();
  Bytes bytes = frame(write_header(0, 10), Bytes(10));
  bytes.resize(kHeaderBytes - 1);
  peer.send(bytes);
  peer.end();
  EXPECT_TRUE(becomes_true([&] { return !receiver_->health(); }));
  EXPECT_EQ(receiver_->health().error().code(), Code::kUnavailable);
  expect_untouched();
}

TEST_F(HostileSenderTest, TruncatedPayloadNeverCountsAsLanded) {
  const RawPeer peer = enter();
  peer.send(frame(write_header(0, 10), Bytes(9)));
  peer.end();
  EXPECT_TRUE(becomes_true([&] { return !receiver_->health(); }));
  EXPECT_EQ(receiver_->health().error().code(), Code::kUnavailable);
  EXPECT_EQ(landed_, 0);
}

TEST_F(HostileSenderTest, EndWithoutGoodbyeIsAnError) {
  const RawPeer peer = enter();
  peer.end();
  EXPECT_TRUE(becomes_true([&] { return !receiver_->health(); }));
  EXPECT_EQ(receiver_->health().error().code(), Code::kUnavailable);
}

/// A region without its own memory in addition to the usual one, and a window with one slot for
/// each lane.
class HostileWindowTest : public RawSenderTest {
 protected:
  static constexpr RegionId kWindowed = kRegion + 1;
  static constexpr std::uint64_t kSize = 64 * kPlaceBytes;

  HostileWindowTest() : RawSenderTest({.max_lanes = 2}) {
    const auto take = [this](RegionId, std::uint64_t, const Place& place) -> Status {
      arrived_bytes_ += place.bytes().size();
      return {};
    };
    EXPECT_TRUE(receiver_->open_window({window_, take}));
    EXPECT_TRUE(receiver_->add_windowed_region(kWindowed, kSize));
  }
  ~HostileWindowTest() override { receiver_.reset(); }  // its lanes write into the window

  static FrameHeader chunk_header(std::uint64_t sequence, std::uint64_t offset = 0) {
    return {.type = FrameType::kWrite,
            .asks = true,
            .region = kWindowed,
            .length_bytes = kPlaceBytes,
            .offset = offset,
            .sequence = sequence};
  }

  Bytes window_ = Bytes(2 * kPlaceBytes);
  std::atomic<std::uint64_t> arrived_bytes_ = 0;
};

TEST_F(HostileWindowTest, EndlessChunkBlocksNoOtherLane) {
  const RawPeer stuck = enter(0);
  stuck.send(frame(chunk_header(0), Bytes(kPlaceBytes - 1)));
  const RawPeer other = enter(1);
  for (std::uint64_t i = 0; i < 16; ++i) {
    other.send(frame(chunk_header(i, i * kPlaceBytes), Bytes(kPlaceBytes)));
    const auto landed = other.receive_header();
    ASSERT_TRUE(landed && landed->type == FrameType::kLanded) << i;
  }
  EXPECT_EQ(arrived_bytes_, 16 * kPlaceBytes);
  receiver_->cancel();  // ends the wait for the rest, too
}

TEST_F(HostileWindowTest, IncompleteChunksReleaseTheirSlots) {
  for (int i = 0; i < 8; ++i) {
    const RawPeer peer = enter(0);
    peer.send(frame(chunk_header(0), Bytes(1000)));
  }
  const RawPeer peer = enter(0);
  peer.send(frame(chunk_header(0), Bytes(kPlaceBytes)));
  const auto landed = peer.receive_header();
  EXPECT_TRUE(landed && landed->type == FrameType::kLanded);
  EXPECT_EQ(arrived_bytes_, kPlaceBytes);
}

/// Offsets that leave no room for a chunk.
class HostileOffsetTest : public HostileWindowTest,
                          public testing::WithParamInterface<std::uint64_t> {};

TEST_P(HostileOffsetTest, ChunkBeyondItsRegionGetsNoSlot) {
  const RawPeer peer = enter(0);
  peer.send(frame(chunk_header(0, GetParam())));
  EXPECT_EQ(peer.receive_error().code(), Code::kInvalidArgument);
  EXPECT_EQ(arrived_bytes_, 0U);
}

INSTANTIATE_TEST_SUITE_P(Offsets, HostileOffsetTest,
                         testing::Values(64 * kPlaceBytes - kPlaceBytes + 1, 64 * kPlaceBytes,
                                         ~std::uint64_t{0}, ~std::uint64_t{0} - kPlaceBytes + 2));

TEST_F(HostileSenderTest, UnknownSendersAreRefused) {
  const Bytes first_words[] = {
      hello_frame("tokem"),
      hello_frame(""),
      hello_frame(std::string("token\0", 6)),
      frame(write_header(0, 5), Bytes(5)),
      frame({.type = FrameType::kFlush}),
      Bytes(kHeaderBytes, std::byte{0}),
      with_byte(hello_frame(), kHeaderBytes, 99),
  };
  const RawPeer friendly = enter();
  for (const Bytes& words : first_words) {
    const RawPeer peer = connect();
    peer.send(words);
    EXPECT_NE(peer.receive_error().code(), Code::kUnavailable);
  }
  friendly.send(frame(write_header(990, 10), Bytes(10, std::byte{9})));
  friendly.send(frame({.type = FrameType::kFlush, .sequence = 1}));
  const auto flushed = friendly.receive_header();
  EXPECT_TRUE(flushed && flushed->type == FrameType::kLanded);
  EXPECT_EQ(region_.back(), std::byte{9});
  EXPECT_TRUE(receiver_->health());
}

class CrowdedReceiverTest : public HostileSenderTest {
 protected:
  CrowdedReceiverTest()
      : HostileSenderTest({.max_lanes = 2, .handshake_timeout = std::chrono::milliseconds(50)}) {}
};

TEST_F(CrowdedReceiverTest, ExcessLanesAreRefused) {
  const RawPeer first = connect();
  first.send(hello_frame(Hello{.lane = 0, .lanes = 3, .session = kSession, .token = "token"}));
  EXPECT_EQ(first.receive_error().code(), Code::kResourceExhausted);
  EXPECT_EQ(receiver_->lanes(), 0U);
  const RawPeer second = enter(0);
  const RawPeer third = enter(1);
  EXPECT_EQ(receiver_->lanes(), 2U);
  EXPECT_TRUE(receiver_->health());
}

TEST_F(CrowdedReceiverTest, SilentConnectionsAreLimitedAndExpire) {
  std::vector<UniqueFd> silent;
  Status added;
  auto add_one = [&] {
    silent.push_back(connect_loopback(listener_.port()));
    added = receiver_->add_connection(listener_.accept());
    return added.has_value();
  };
  for (int i = 0; i < 100 && add_one(); ++i) {
  }
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().code(), Code::kResourceExhausted);
  silent.clear();
  EXPECT_TRUE(becomes_true(add_one));
  EXPECT_TRUE(receiver_->health());
}

TEST_F(CrowdedReceiverTest, CancelIsReportedToSendersWithTheToken) {
  receiver_->cancel();
  const RawPeer peer = connect();
  peer.send(hello_frame());
  EXPECT_EQ(peer.receive_error().code(), Code::kCancelled);
}

/// A sender whose receiver is a script: `answer` gets the connection once the hello has arrived.
class HostileReceiverTest : public testing::Test {
 protected:
  Result<std::unique_ptr<Channel>> connect_to(std::function<void(RawPeer&)> answer) {
    script_ = std::async(std::launch::async, [this, answer = std::move(answer)] {
      UniqueFd socket = listener_.accept();
      Bytes hello(kHeaderBytes + kHelloBytes);
      ::recv(socket.get(), hello.data(), hello.size(), MSG_WAITALL);
      RawPeer peer(std::move(socket));
      answer(peer);
    });
    return connect({{"127.0.0.1", listener_.port()}},
                   {.lanes = 1, .token = "t", .connect_timeout = std::chrono::milliseconds(500)});
  }

  static void expect_refusal(const Result<std::unique_ptr<Channel>>& channel, Code code) {
    ASSERT_FALSE(channel);
    EXPECT_EQ(channel.error().code(), code) << channel.error().message();
  }

  LoopbackListener listener_;
  std::future<void> script_;
};

TEST_F(HostileReceiverTest, GarbageForAWelcomeIsAProtocolError) {
  expect_refusal(connect_to([](RawPeer& peer) { peer.send(Bytes(kHeaderBytes)); }),
                 Code::kProtocol);
}

TEST_F(HostileReceiverTest, OtherFrameForAWelcomeIsAProtocolError) {
  expect_refusal(connect_to([](RawPeer& peer) { peer.send(frame({.type = FrameType::kLanded})); }),
                 Code::kProtocol);
}

TEST_F(HostileReceiverTest, OversizedErrorIsAProtocolError) {
  expect_refusal(connect_to([](RawPeer& peer) {
                   peer.send(frame({.type = FrameType::kError, .length_bytes = 1 << 20}));
                 }),
                 Code::kProtocol);
}

TEST_F(HostileReceiverTest, SilenceIsATimeout) {
  std::promise<void> done;
  auto result = connect_to([&](RawPeer&) { done.get_future().wait(); });
  expect_refusal(result, Code::kTimeout);
  done.set_value();
  script_.wait();
}

TEST_F(HostileReceiverTest, EndForAWelcomeIsUnavailable) {
  expect_refusal(connect_to([](RawPeer&) {}), Code::kUnavailable);
}

TEST_F(HostileReceiverTest, UnexpectedFrameBreaksTheChannel) {
  std::promise<void> done;
  auto channel = connect_to([&](RawPeer& peer) {
    peer.send(frame({.type = FrameType::kWelcome}));
    peer.send(frame({.type = FrameType::kWelcome}));
    done.get_future().wait();
  });
  ASSERT_TRUE(channel) << channel.error().message();
  Status written;
  EXPECT_TRUE(becomes_true([&] {
    written = (*channel)->write(1, 0, Bytes(1));
    return !written;
  }));
  done.set_value();
  script_.wait();
  EXPECT_EQ(written.error().code(), Code::kProtocol) << written.error().message();
}

}  // namespace
}  // namespace gcr::transport

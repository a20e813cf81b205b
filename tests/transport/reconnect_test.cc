// Connections that are lost in the middle: the lane reconnects, nothing is missed, and no landed
// data is resent.
#include <sys/socket.h>

#include <array>
#include <future>
#include <memory>
#include <mutex>

#include "src/base/units.h"
#include "tests/transport/raw_peer.h"

namespace gcr::transport {
namespace {

using std::chrono::milliseconds;
using test::LoopbackListener;
using test::TcpRelay;

Bytes pattern(std::size_t size, unsigned seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 131 + seed) >> 3);
  return bytes;
}

/// A real transfer through two relays, which alternate as addresses.
class ReconnectTest : public testing::Test {
 protected:
  ReconnectTest()
      : receiver_(receive_tcp(
            {.token = "token",
             .on_landed = [this](auto, std::uint64_t offset, std::uint64_t length) -> Status {
               const std::lock_guard lock(mutex_);
               for (auto i = offset; i < offset + length; ++i) ++landed_times_[i];
               return {};
             }})) {
    EXPECT_TRUE(receiver_->add_region(kRegion, region_));
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~ReconnectTest() override {
    channel_.reset();
    listener_.stop();
    acceptor_.join();
  }

  void start(unsigned lanes, milliseconds window = std::chrono::seconds(20)) {
    auto channel = connect({{"127.0.0.1", first_.port()}, {"127.0.0.1", second_.port()}},
                           {.lanes = lanes, .token = "token", .reconnect_window = window});
    ASSERT_TRUE(channel) << channel.error().message();
    channel_ = std::move(*channel);
  }

  void expect_arrived(const Bytes& sent) {
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), region_.begin()));
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < sent.size(); ++i) ASSERT_EQ(landed_times_[i], 1) << i;
    EXPECT_TRUE(receiver_->health());
  }

  /// Cuts every connection, and waits until `lanes` of them are restored.
  void cut_and_wait(unsigned lanes) {
    const auto before = channel_->statistics().reconnections;
    first_.cut_once();
    second_.cut_once();
    ASSERT_TRUE(
        becomes_true([&] { return channel_->statistics().reconnections == before + lanes; }));
  }

  static constexpr std::size_t kRegionBytes = 16 * kMiB;

  std::mutex mutex_;
  std::vector<std::uint8_t> landed_times_ = std::vector<std::uint8_t>(kRegionBytes);
  Bytes region_ = Bytes(kRegionBytes);
  LoopbackListener listener_;
  TcpRelay first_{listener_.port()};
  TcpRelay second_{listener_.port()};
  std::unique_ptr<TcpReceiver> receiver_;
  std::atomic<bool> turned_away_ = false;  ///< new connections are closed at once
  std::atomic<int> attempts_ = 0;          ///< refused ones
  std::thread acceptor_;
  std::unique_ptr<Channel> channel_;

 private:
  void accept_all() {
    while (UniqueFd socket = listener_.accept()) {
      if (turned_away_) {
        ++attempts_;
      } else {
        (void)receiver_->add_connection(std::move(socket));
      }
    }
  }
};

TEST_F(ReconnectTest, CutAtAnyByteIsRepairedWithoutRepetition) {
  const Bytes sent = pattern(3 * kMiB, 1);
  std::uint64_t reconnections = 0;
  start(1);
  std::size_t at = 0;
  for (const std::int64_t bytes : {1, 31, 32, 33, 1000, 70'000, 100'000, 200'000, 255'000}) {
    first_.cut_once_after(bytes);
    // Small and large ones, all of which the cut can hit.
    for (const std::size_t size : {std::size_t{100}, std::size_t{40'000}, std::size_t{150'000},
                                   std::size_t{1}, std::size_t{65'536}}) {
      ASSERT_TRUE(channel_->write(kRegion, at, std::span(sent).subspan(at, size)));
      at += size;
    }
    ASSERT_TRUE(channel_->flush());
    EXPECT_GT(channel_->statistics().reconnections, reconnections) << bytes;
    reconnections = channel_->statistics().reconnections;
  }
  expect_arrived(Bytes(sent.begin(), sent.begin() + static_cast<std::ptrdiff_t>(at)));
  EXPECT_EQ(receiver_->statistics().payload_bytes, at);
  EXPECT_EQ(channel_->statistics().payload_bytes, at);
}

TEST_F(ReconnectTest, LandedFramesAreNotResent) {
  const Bytes sent = pattern(5 * kMiB, 2);
  start(4);
  ASSERT_TRUE(channel_->write(kRegion, 0, std::span(sent).first(4 * kMiB)));
  for (std::size_t i = 0; i < 16; ++i) {
    const std::size_t at = 4 * kMiB + i * 64 * kKiB;
    ASSERT_TRUE(channel_->write(kRegion, at, std::span(sent).subspan(at, 64 * kKiB)));
  }
  ASSERT_TRUE(channel_->flush());
  const std::uint64_t wire_bytes = channel_->statistics().wire_bytes;
  for (int cut = 0; cut < 3; ++cut) cut_and_wait(4);
  ASSERT_TRUE(channel_->flush());
  EXPECT_EQ(channel_->statistics().wire_bytes, wire_bytes);
  // 18 frames and at most one confirmation request for each lane.
  EXPECT_LE(wire_bytes, sent.size() + (18 + 4) * kHeaderBytes);
  EXPECT_EQ(receiver_->statistics().reconnections, 12U);
  expect_arrived(sent);
}

TEST_F(ReconnectTest, IdleLaneIsReconnectedEarly) {
  start(2);
  cut_and_wait(2);
  EXPECT_TRUE(becomes_true([&] { return receiver_->lanes() == 2; }));
}

TEST_F(ReconnectTest, FinishedTransferDoesNotReconnect) {
  start(4);
  const Bytes sent = pattern(1 * kMiB, 3);
  ASSERT_TRUE(channel_->write(kRegion, 0, sent));
  ASSERT_TRUE(channel_->flush());
  turned_away_ = true;
  channel_->end();
  expect_arrived(sent);
  receiver_->cancel();
  std::this_thread::sleep_for(milliseconds(200));  // a lane would try every 10 to 160
  EXPECT_EQ(attempts_, 0);
  EXPECT_EQ(channel_->statistics().reconnections, 0U);
}

TEST_F(ReconnectTest, OtherLanesContinueWhileOneIsLost) {
  const Bytes sent = pattern(8 * kMiB, 3);
  start(2);
  turned_away_ = true;
  second_.cut_once();
  ASSERT_TRUE(becomes_true([&] { return attempts_ > 0; }));
  for (std::size_t at = 0; at < sent.size(); at += kMiB) {
    ASSERT_TRUE(channel_->write(kRegion, at, std::span(sent).subspan(at, kMiB)));
  }
  ASSERT_TRUE(channel_->flush());
  EXPECT_EQ(channel_->statistics().reconnections, 0U);
  expect_arrived(sent);
  turned_away_ = false;
  EXPECT_TRUE(becomes_true([&] { return channel_->statistics().reconnections == 1; }));
}

TEST_F(ReconnectTest, LaneReconnectsThroughAnotherAddress) {
  const Bytes sent = pattern(4 * kMiB, 4);
  start(2);
  second_.cut();
  ASSERT_TRUE(becomes_true([&] { return channel_->statistics().reconnections == 1; }));
  ASSERT_TRUE(channel_->write(kRegion, 0, sent));
  ASSERT_TRUE(channel_->flush());
  expect_arrived(sent);
}

TEST_F(ReconnectTest, ManyWritersSurviveManyCuts) {
  constexpr std::size_t kWriters = 24;
  const Bytes sent = pattern(kRegionBytes, 5);
  start(3);
  std::atomic<std::size_t> next = 0;
  std::vector<std::future<Status>> writers;
  for (std::size_t writer = 0; writer < kWriters; ++writer) {
    writers.push_back(std::async(std::launch::async, [&, writer]() -> Status {
      const std::size_t size = writer % 3 == 0 ? 3'000'000 : writer % 3 == 1 ? 100'000 : 3'000;
      for (;;) {
        const std::size_t at = next.fetch_add(size);
        if (at >= sent.size()) return channel_->flush();
        const auto piece = std::span(sent).subspan(at, std::min(size, sent.size() - at));
        GCR_TRY(channel_->write(kRegion, at, piece));
      }
    }));
  }
  for (int cut = 0; cut < 8; ++cut) {
    // Every lane has its connection again before the next cut, which would miss one that has none.
    const bool is_first = cut % 2 == 0;
    const auto after = channel_->statistics().reconnections + (is_first ? 2 : 1);
    (is_first ? first_ : second_).cut_once();
    ASSERT_TRUE(becomes_true([&] { return channel_->statistics().reconnections >= after; }));
  }
  for (auto& writer : writers) {
    const Status status = writer.get();
    EXPECT_TRUE(status) << status.error().message();
  }
  expect_arrived(sent);
  EXPECT_EQ(receiver_->statistics().payload_bytes, sent.size());
}

TEST_F(ReconnectTest, PermanentlyLostLaneFailsTheChannel) {
  start(2, milliseconds(100));
  turned_away_ = true;
  second_.cut_once();
  Status flushed;
  EXPECT_TRUE(becomes_true([&] {
    (void)channel_->write(kRegion, 0, Bytes(100));
    flushed = channel_->flush();
    return !flushed;
  }));
  EXPECT_EQ(flushed.error().code(), Code::kUnavailable);
  EXPECT_NE(flushed.error().message().find("no other connection within 100 ms"), std::string::npos)
      << flushed.error().message();
  EXPECT_NE(flushed.error().message().find(std::to_string(second_.port())), std::string::npos)
      << flushed.error().message();
}

TEST_F(ReconnectTest, WithoutAReconnectWindowALossIsFinal) {
  start(1, milliseconds(0));
  turned_away_ = true;
  first_.cut_once();
  EXPECT_TRUE(becomes_true([&] { return !channel_->flush(); }));
  EXPECT_EQ(attempts_, 0);
}

TEST_F(ReconnectTest, CancelEndsWritersOfALostLane) {
  start(1);
  turned_away_ = true;
  first_.cut_once();
  ASSERT_TRUE(becomes_true([&] { return attempts_ > 0; }));
  auto large = std::async(std::launch::async,
                          [&] { return channel_->write(kRegion, 0, pattern(3 * kMiB, 6)); });
  auto small =
      std::async(std::launch::async, [&] { return channel_->write(kRegion, 0, Bytes(10)); });
  EXPECT_EQ(large.wait_for(milliseconds(20)), std::future_status::timeout);
  channel_->cancel();
  for (auto* writer : {&large, &small}) {
    const Status status = writer->get();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), Code::kCancelled);
  }
}

TEST_F(ReconnectTest, GoodbyeWithALostLaneIsAccepted) {
  start(2);
  ASSERT_TRUE(channel_->write(kRegion, 0, pattern(1000, 7)));
  ASSERT_TRUE(channel_->flush());
  turned_away_ = true;
  second_.cut_once();
  ASSERT_TRUE(becomes_true([&] { return attempts_ > 0; }));
  channel_.reset();
  EXPECT_TRUE(becomes_true([&] { return receiver_->lanes() == 0; }));
  EXPECT_TRUE(receiver_->health());
}

/// A sender of one lane whose receiver is a script, over any number of connections.
class ScriptedReceiverTest : public testing::Test {
 protected:
  Result<std::unique_ptr<Channel>> connect_to(std::function<void()> script) {
    script_ = std::async(std::launch::async, std::move(script));
    return connect({{"127.0.0.1", listener_.port()}}, {.token = "t"});
  }

  /// The next connection, once its hello has arrived; welcomed with `landed`.
  RawPeer welcome(std::uint64_t landed) {
    UniqueFd socket = listener_.accept();
    Bytes hello(kHeaderBytes + kHelloBytes);
    ::recv(socket.get(), hello.data(), hello.size(), MSG_WAITALL);
    RawPeer peer(std::move(socket));
    peer.send(frame({.type = FrameType::kWelcome, .sequence = landed}));
    return peer;
  }

  static void expect_write(const RawPeer& peer, std::uint64_t number) {
    const auto write = peer.receive_write();
    ASSERT_TRUE(write);
    EXPECT_EQ(write->first.sequence, number);
    EXPECT_EQ(write->first.offset, number);
    EXPECT_EQ(write->second, Bytes(write->second.size(), static_cast<std::byte>(number)));
  }

  /// The error of a channel whose receiver follows `script`.
  Error failure(std::function<void()> script) {
    auto channel = connect_to(std::move(script));
    if (!channel) return channel.error();
    Status status;
    EXPECT_TRUE(becomes_true([&] {
      status = (*channel)->write(1, 0, Bytes(1));
      return !status;
    }));
    return status.error();
  }

  static void expect_some_write(const RawPeer& peer) { EXPECT_TRUE(peer.receive_write()); }

  LoopbackListener listener_;
  std::future<void> script_;
};

TEST_F(ScriptedReceiverTest, OnlyUnlandedFramesAreResentInOrder) {
  std::promise<void> three_sent;
  auto channel = connect_to([&] {
    {
      const RawPeer peer = welcome(0);
      for (std::uint64_t number = 0; number < 3; ++number) expect_write(peer, number);
      three_sent.get_future().wait();
    }
    const RawPeer peer = welcome(1);
    expect_write(peer, 1);
    expect_write(peer, 2);
    peer.send(frame({.type = FrameType::kLanded, .sequence = 3}));
    expect_write(peer, 3);
    const auto flush = peer.receive_header();
    EXPECT_TRUE(flush && flush->type == FrameType::kFlush && flush->sequence == 4);
    peer.send(frame({.type = FrameType::kLanded, .sequence = 4}));
    const auto goodbye = peer.receive_header();
    EXPECT_TRUE(goodbye && goodbye->type == FrameType::kEnd && goodbye->sequence == 4);
  });
  ASSERT_TRUE(channel) << channel.error().message();
  for (std::uint64_t number = 0; number < 3; ++number) {
    ASSERT_TRUE((*channel)->write(1, number, Bytes(10, static_cast<std::byte>(number))));
  }
  three_sent.set_value();
  ASSERT_TRUE(becomes_true([&] { return (*channel)->statistics().reconnections == 1; }));
  ASSERT_TRUE((*channel)->flush());  // the last resent frame has requested a confirmation
  EXPECT_EQ((*channel)->statistics().wire_bytes, 5 * (10 + kHeaderBytes));
  ASSERT_TRUE((*channel)->write(1, 3, Bytes(10, std::byte{3})));
  ASSERT_TRUE((*channel)->flush());
  EXPECT_EQ((*channel)->statistics().reconnections, 1U);
  EXPECT_EQ((*channel)->statistics().payload_bytes, 40U);
  EXPECT_EQ((*channel)->statistics().wire_bytes, 6 * (10 + kHeaderBytes) + kHeaderBytes);
}

TEST_F(ScriptedReceiverTest, LargeWriteReturnsWhenAllIsConfirmed) {
  std::promise<void> confirm;
  auto channel = connect_to([&] {
    const RawPeer peer = welcome(0);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(peer.receive_write());
    peer.send(frame({.type = FrameType::kLanded, .sequence = 1}));
    confirm.get_future().wait();
    peer.send(frame({.type = FrameType::kLanded, .sequence = 2}));
    (void)peer.receive_header();
  });
  ASSERT_TRUE(channel) << channel.error().message();
  const Bytes sent(3 * kMiB);
  auto write = std::async(std::launch::async, [&] { return (*channel)->write(1, 0, sent); });
  EXPECT_EQ(write.wait_for(milliseconds(50)), std::future_status::timeout);
  confirm.set_value();
  EXPECT_TRUE(write.get());
}

TEST_F(ScriptedReceiverTest, ImpossibleClaimsAreProtocolErrors) {
  const std::function<void()> scripts[] = {
      [&] { (void)welcome(1).receive_header(); },
      [&] {
        const RawPeer peer = welcome(0);
        peer.send(frame({.type = FrameType::kLanded, .sequence = ~std::uint64_t{0}}));
        while (peer.receive_write()) continue;
      },
      [&] {  // more than was sent, by another connection
        { expect_some_write(welcome(0)); }
        while (welcome(1'000'000).receive_write()) continue;
      },
      [&] {  // less than was confirmed
        {
          const RawPeer peer = welcome(0);
          expect_some_write(peer);
          peer.send(frame({.type = FrameType::kLanded, .sequence = 1}));
          expect_some_write(peer);
        }
        while (welcome(0).receive_write()) continue;
      },
  };
  for (const auto& script : scripts) {
    const Error error = failure(script);
    EXPECT_EQ(error.code(), Code::kProtocol) << error.message();
    EXPECT_NE(error.message().find("have landed"), std::string::npos) << error.message();
    script_.get();
  }
}

TEST_F(ScriptedReceiverTest, ErrorFromTheReceiverIsFinal) {
  const std::string said = encode_error(Error(Code::kUnavailable, "the disk is full"));
  const Error error = failure([&] {
    const RawPeer peer = welcome(0);
    Bytes payload(said.size());
    std::transform(said.begin(), said.end(), payload.begin(),
                   [](char c) { return static_cast<std::byte>(c); });
    peer.send(
        frame({.type = FrameType::kError, .length_bytes = static_cast<std::uint32_t>(said.size())},
              payload));
    while (peer.receive_write()) continue;
  });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_NE(error.message().find("the receiver reports: the disk is full"), std::string::npos)
      << error.message();
  script_.get();
}

}  // namespace
}  // namespace gcr::transport

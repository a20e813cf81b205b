// Messages on an established channel: valid ones, and the handling of invalid ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <asio/steady_timer.hpp>

#include "src/base/units.h"
#include "tests/src/control/peers.h"

namespace gcr::control::test {
namespace {

using testing::HasSubstr;

/// A server of this project, and a raw client that has completed the handshake and sends what a
/// test wants.
class Framing : public testing::Test {
 protected:
  /// What the server receives after `say` ran on the client's side. The client then closes.
  Result<proto::Envelope> receive_after(const std::function<void(RawPeer&)>& say) {
    const auto server = credentials_.context({});
    const auto client =
        gcr::test::make_context(TLS_client_method(), credentials_.authority().issue(),
                                credentials_.authority().certificate());
    std::thread peer([&] {
      Preface preface;
      preface.kind = ConnectionKind::kControl;
      RawPeer raw(loopback_.endpoint().port, preface);
      if (!raw.handshake(client.get())) return;
      raw.write_message(hello());
      if (raw.read_message()) say(raw);
    });
    std::optional<Result<proto::Envelope>> received;
    std::vector<asio::awaitable<void>> coroutines;
    coroutines.push_back(receive(server, received));
    loopback_.run(std::move(coroutines));
    peer.join();
    return *received;
  }

  asio::awaitable<void> receive(std::shared_ptr<asio::ssl::context> tls,
                                std::optional<Result<proto::Envelope>>& received) {
    auto channel = co_await loopback_.accept(tls);
    if (!channel) {
      received.emplace(channel.error());
      co_return;
    }
    received.emplace(co_await (*channel)->receive(kPatience));
  }

  Credentials credentials_;
  Loopback loopback_;
};

TEST_F(Framing, WholeMessageArrives) {
  proto::Envelope sent;
  sent.mutable_migrate_request()->set_pid(4711);
  const auto received = receive_after([&](RawPeer& raw) { raw.write_message(sent); });
  ASSERT_TRUE(received) << received.error().message();
  EXPECT_EQ(received->migrate_request().pid(), 4711);
}

TEST_F(Framing, MessageInSingleBytesArrives) {
  proto::Envelope sent;
  sent.mutable_abort_request()->set_reason("slowly");
  const std::string payload = sent.SerializeAsString();
  const auto received = receive_after([&](RawPeer& raw) {
    for (const char byte : frame(static_cast<std::uint32_t>(payload.size()), payload)) {
      raw.write(std::string(1, byte));
    }
  });
  ASSERT_TRUE(received) << received.error().message();
  EXPECT_EQ(received->abort_request().reason(), "slowly");
}

TEST_F(Framing, TruncatedHeaderMeansThePeerIsGone) {
  const auto received = receive_after([](RawPeer& raw) { raw.write(std::string(2, '\0')); });
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().code(), Code::kUnavailable);
  EXPECT_THAT(received.error().message(), HasSubstr("\"test\" at 127.0.0.1"));
}

TEST_F(Framing, TruncatedPayloadMeansThePeerIsGone) {
  const auto received = receive_after([](RawPeer& raw) { raw.write(frame(100, "only this")); });
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().code(), Code::kUnavailable);
}

TEST_F(Framing, LengthZeroIsRefused) {
  const auto received = receive_after([](RawPeer& raw) { raw.write(frame(0, "")); });
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().code(), Code::kProtocol);
  EXPECT_THAT(received.error().message(), HasSubstr("0 bytes"));
}

TEST_F(Framing, TooLongMessageIsRefusedBeforeAllocating) {
  for (const std::uint32_t length :
       {static_cast<std::uint32_t>(kMaxMessageBytes + 1), 0xffffffffU}) {
    const auto received = receive_after([&](RawPeer& raw) { raw.write(frame(length, "")); });
    ASSERT_FALSE(received);
    EXPECT_EQ(received.error().code(), Code::kProtocol);
    EXPECT_THAT(received.error().message(), HasSubstr(std::to_string(length)));
  }
}

TEST_F(Framing, GarbageIsRefused) {
  for (const std::string& garbage :
       {std::string(64, '\xff'), std::string("\x0a\xff\xff\xff\x0f", 5)}) {
    const auto received = receive_after([&](RawPeer& raw) {
      raw.write(frame(static_cast<std::uint32_t>(garbage.size()), garbage));
    });
    ASSERT_FALSE(received);
    EXPECT_EQ(received.error().code(), Code::kProtocol);
  }
}

TEST_F(Framing, EnvelopeWithoutKnownContentIsRefused) {
  const std::string unknown_field("\xfa\x3f\x01x", 4);  // field 1023, one byte
  const auto received = receive_after([&](RawPeer& raw) { raw.write(frame(4, unknown_field)); });
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().code(), Code::kProtocol);
}

class Conversation : public testing::Test {
 protected:
  Conversation() {
    auto [server, client] =
        loopback_.connect_both(credentials_.context({}), credentials_.context({}));
    server_ = std::move(server.value());
    client_ = std::move(client.value());
  }

  void run(asio::awaitable<void> coroutine) {
    std::vector<asio::awaitable<void>> one;
    one.push_back(std::move(coroutine));
    loopback_.run(std::move(one));
  }

  Credentials credentials_;
  Loopback loopback_;
  std::unique_ptr<ControlChannel> server_;
  std::unique_ptr<ControlChannel> client_;
};

asio::awaitable<void> answer(ControlChannel& channel, proto::Envelope reply) {
  const auto request = co_await channel.receive(kPatience);
  EXPECT_TRUE(request);
  const Status sent = co_await channel.send(reply);
  EXPECT_TRUE(sent);
}

asio::awaitable<void> ask(ControlChannel& channel, std::optional<Result<proto::Envelope>>& reply) {
  proto::Envelope request;
  request.mutable_commit_request();
  reply.emplace(co_await channel.call(request, kPatience));
}

TEST_F(Conversation, CallReturnsTheReply) {
  proto::Envelope reply;
  reply.mutable_commit_reply()->set_pid(12);
  std::optional<Result<proto::Envelope>> received;
  std::vector<asio::awaitable<void>> both;
  both.push_back(answer(*server_, reply));
  both.push_back(ask(*client_, received));
  loopback_.run(std::move(both));
  ASSERT_TRUE(*received) << received->error().message();
  EXPECT_EQ((*received)->commit_reply().pid(), 12);
}

asio::awaitable<void> send_to(ControlChannel& channel, proto::Envelope message, Status& sent) {
  sent = co_await channel.send(message);
}

asio::awaitable<void> receive_from(ControlChannel& channel, std::chrono::milliseconds timeout,
                                   std::optional<Result<proto::Envelope>>& received) {
  received.emplace(co_await channel.receive(timeout));
}

/// A message whose serialised form has exactly `bytes` bytes.
proto::Envelope message_of(std::size_t bytes) {
  proto::Envelope message;
  std::string& reason = *message.mutable_abort_request()->mutable_reason();
  reason.assign(bytes, 'x');
  reason.resize(bytes - (message.ByteSizeLong() - bytes));
  EXPECT_EQ(message.ByteSizeLong(), bytes);
  return message;
}

TEST_F(Conversation, LargestMessageArrivesAndALargerOneIsNotSent) {
  Status refused;
  run(send_to(*client_, message_of(kMaxMessageBytes + 1), refused));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);

  Status sent;
  std::optional<Result<proto::Envelope>> received;
  std::vector<asio::awaitable<void>> both;
  both.push_back(send_to(*client_, message_of(kMaxMessageBytes), sent));
  both.push_back(receive_from(*server_, kPatience, received));
  loopback_.run(std::move(both));
  EXPECT_TRUE(sent);
  ASSERT_TRUE(*received) << received->error().message();
  EXPECT_EQ((*received)->ByteSizeLong(), kMaxMessageBytes);
}

TEST_F(Conversation, TimeoutMakesTheChannelUnusable) {
  std::optional<Result<proto::Envelope>> received;
  run(receive_from(*server_, std::chrono::milliseconds(1), received));
  ASSERT_FALSE(*received);
  EXPECT_EQ(received->error().code(), Code::kTimeout);
  run(receive_from(*server_, kPatience, received));
  EXPECT_FALSE(*received);
}

TEST_F(Conversation, TimeoutNamesUnacknowledgedData) {
  Status sent;
  // more than a host buffers while the peer reads nothing
  run(send_to(*client_, message_of(512 * kKiB), sent));
  ASSERT_TRUE(sent) << sent.error().message();
  std::optional<Result<proto::Envelope>> received;
  run(receive_from(*client_, std::chrono::milliseconds(1), received));
  ASSERT_FALSE(*received);
  EXPECT_EQ(received->error().code(), Code::kTimeout);
  EXPECT_THAT(received->error().message(), testing::HasSubstr("has not acknowledged "));
}

TEST_F(Conversation, DisconnectedPeerIsNamed) {
  client_.reset();
  std::optional<Result<proto::Envelope>> received;
  run(receive_from(*server_, kPatience, received));
  ASSERT_FALSE(*received);
  EXPECT_EQ(received->error().code(), Code::kUnavailable);
  EXPECT_THAT(received->error().message(), HasSubstr("closed the connection"));
}

asio::awaitable<void> send_and_finish(ControlChannel& channel, proto::Envelope message) {
  const Status sent = co_await channel.send(message);
  EXPECT_TRUE(sent);
  co_await channel.finish(kPatience);
}

asio::awaitable<void> receive_and_close(ControlChannel& channel,
                                        std::optional<Result<proto::Envelope>>& received) {
  received.emplace(co_await channel.receive(kPatience));
  channel.close();
}

TEST_F(Conversation, FinishDeliversOutputDespiteUnreadInput) {
  Status unread;
  run(send_to(*client_, message_of(1000), unread));
  std::optional<Result<proto::Envelope>> received;
  std::vector<asio::awaitable<void>> both;
  both.push_back(send_and_finish(*server_, message_of(200'000)));
  both.push_back(receive_and_close(*client_, received));
  loopback_.run(std::move(both));
  ASSERT_TRUE(*received) << received->error().message();
  EXPECT_EQ((*received)->ByteSizeLong(), 200'000U);
}

}  // namespace
}  // namespace gcr::control::test

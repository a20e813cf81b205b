// How a channel is established: Hellos, versions, and unreachable agents.
#include "src/control/control_channel.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "tests/src/control/peers.h"

namespace gcr::control::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Greeting : public testing::Test {
 protected:
  asio::awaitable<void> store_accept(std::shared_ptr<asio::ssl::context> tls,
                                     std::chrono::milliseconds timeout = kPatience) {
    accepted_.emplace(co_await loopback_.accept(tls, timeout));
  }

  asio::awaitable<void> store_connect(std::shared_ptr<asio::ssl::context> tls, Endpoint to,
                                      std::chrono::milliseconds timeout = kPatience) {
    Preface preface;
    preface.kind = ConnectionKind::kControl;
    connected_.emplace(co_await ControlChannel::connect(to, preface, tls, timeout));
  }

  void run(asio::awaitable<void> coroutine) {
    std::vector<asio::awaitable<void>> one;
    one.push_back(std::move(coroutine));
    loopback_.run(std::move(one));
  }

  Credentials credentials_;
  Loopback loopback_;
  std::optional<ChannelResult> accepted_;
  std::optional<ChannelResult> connected_;
};

TEST_F(Greeting, BothSidesExchangeTheirNames) {
  const auto [server, client] = loopback_.connect_both(
      credentials_.context({.role = "agent", .common_name = "node2"}),
      credentials_.context({.role = "operator", .common_name = "alice", .host = ""}));
  ASSERT_TRUE(server) << server.error().message();
  ASSERT_TRUE(client) << client.error().message();
  EXPECT_EQ((*server)->peer().common_name, "alice");
  EXPECT_TRUE((*server)->peer().is_operator);
  EXPECT_FALSE((*server)->peer().is_agent);
  EXPECT_EQ((*server)->peer_hello().host(), "client");
  EXPECT_EQ((*client)->peer().common_name, "node2");
  EXPECT_TRUE((*client)->peer().is_agent);
  EXPECT_EQ((*client)->peer_hello().protocol_version(), kProtocolVersion);
  EXPECT_EQ((*client)->peer_address(), loopback_.endpoint().to_string());
  EXPECT_TRUE((*client)->stays_on_host());
  EXPECT_TRUE((*server)->stays_on_host());
}

TEST_F(Greeting, OtherVersionIsRefusedWithBothVersions) {
  const auto client = gcr::test::make_context(TLS_client_method(), credentials_.authority().issue(),
                                              credentials_.authority().certificate());
  std::optional<proto::Envelope> answer;
  std::thread peer([&] {
    Preface preface;
    preface.kind = ConnectionKind::kControl;
    RawPeer raw(loopback_.endpoint().port, preface);
    if (!raw.handshake(client.get())) return;
    raw.write_message(hello(kProtocolVersion + 1));
    if (raw.read_message()) answer = raw.read_message();
  });
  run(store_accept(credentials_.context({})));
  peer.join();
  ASSERT_FALSE(*accepted_);
  EXPECT_EQ(accepted_->error().code(), Code::kProtocol);
  EXPECT_THAT(
      accepted_->error().message(),
      AllOf(HasSubstr(fmt::format("version {} ", kProtocolVersion)),
            HasSubstr(fmt::format("version {} ", kProtocolVersion + 1)), HasSubstr("raw 9.9")));
  ASSERT_TRUE(answer && answer->has_failure());
  EXPECT_EQ(answer->failure().message(), accepted_->error().message());
}

TEST_F(Greeting, FirstMessageMustBeHello) {
  const auto client = gcr::test::make_context(TLS_client_method(), credentials_.authority().issue(),
                                              credentials_.authority().certificate());
  std::thread peer([&] {
    RawPeer raw(loopback_.endpoint().port, Preface{ConnectionKind::kControl, {}});
    if (!raw.handshake(client.get())) return;
    proto::Envelope message;
    message.mutable_commit_request();
    raw.write_message(message);
    while (raw.read_message()) continue;
  });
  run(store_accept(credentials_.context({})));
  peer.join();
  ASSERT_FALSE(*accepted_);
  EXPECT_EQ(accepted_->error().code(), Code::kProtocol);
}

TEST_F(Greeting, SilentPeerTimesOut) {
  std::optional<RawPeer> raw;
  raw.emplace(loopback_.endpoint().port, Preface{ConnectionKind::kControl, {}});
  run(store_accept(credentials_.context({}), std::chrono::milliseconds(1)));
  ASSERT_FALSE(*accepted_);
  EXPECT_EQ(accepted_->error().code(), Code::kTimeout);
}

TEST_F(Greeting, UnreachableAgentIsNamedWithTheCause) {
  const Endpoint closed = Loopback().endpoint();  // its listener is gone when this returns
  run(store_connect(credentials_.context({}), closed));
  ASSERT_FALSE(*connected_);
  EXPECT_EQ(connected_->error().code(), Code::kUnavailable);
  EXPECT_EQ(connected_->error().message(),
            "cannot reach the agent at " + closed.to_string() +
                ": connection refused; is migrate-agent running there?");
}

TEST_F(Greeting, UnknownHostIsNamed) {
  run(store_connect(credentials_.context({}), Endpoint{"no-such-host.invalid", 7411}));
  ASSERT_FALSE(*connected_);
  EXPECT_EQ(connected_->error().code(), Code::kUnavailable);
  EXPECT_THAT(connected_->error().message(), HasSubstr("no-such-host.invalid:7411"));
}

TEST_F(Greeting, SilentAgentTimesOut) {
  // The kernel completes the connection; no process accepts it.
  run(store_connect(credentials_.context({}), loopback_.endpoint(), std::chrono::milliseconds(1)));
  ASSERT_FALSE(*connected_);
  EXPECT_EQ(connected_->error().code(), Code::kUnavailable);
  EXPECT_THAT(connected_->error().message(), HasSubstr("no answer within 1 ms"));
}

}  // namespace
}  // namespace gcr::control::test

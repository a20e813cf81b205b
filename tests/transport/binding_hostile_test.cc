// Under TLS a token is accepted only on the connection and for the transfer that its proof was made
// for; nothing that was sent can be reused.
#include <gtest/gtest.h>

#include "tests/support/tcp_relay.h"
#include "tests/support/test_certificates.h"
#include "tests/transport/raw_peer.h"
#include "transport/tcp/stream.h"

namespace gcr::transport {
namespace {

using test::SslContext;
using test::TestAuthority;

Status accept_any_peer(SSL*) { return {}; }

class BindingHostile : public testing::Test {
 protected:
  static SslContext context(const SSL_METHOD* method) {
    static const TestAuthority authority;
    return test::make_context(method, authority.issue(), authority.certificate());
  }

  BindingHostile() { EXPECT_TRUE(receiver_->add_region(kRegion, region_)); }

  /// The result of a sender with the right token, for this transfer.
  Status send(const Uuid& transfer) {
    std::jthread acceptor([this] {
      while (UniqueFd socket = listener_.accept()) {
        (void)receiver_->add_connection(std::move(socket));
      }
    });
    const auto channel = connect({{"127.0.0.1", listener_.port()}}, {.tls = client_.get(),
                                                                     .verify_peer = accept_any_peer,
                                                                     .token = kToken,
                                                                     .transfer = transfer});
    Status sent = channel ? Status() : Status(channel.error());
    if (sent) sent = (*channel)->write(kRegion, 0, Bytes(region_.size(), std::byte{7}));
    listener_.stop();
    return sent;
  }

  /// A connection after its handshake.
  std::unique_ptr<Stream> shake_hands() {
    auto stream = std::make_unique<Stream>(test::connect_loopback(listener_.port()));
    EXPECT_TRUE(receiver_->add_connection(listener_.accept()));
    EXPECT_TRUE(
        stream->start_tls(client_.get(), Stream::Side::kClient, accept_any_peer, kTransfer));
    return stream;
  }

  /// The receiver's answer to a hello with this in place of the token.
  static FrameType answer(Stream& stream, const std::string& shown) {
    EXPECT_TRUE(stream.send(hello_frame(shown)));
    HeaderBytes bytes;
    if (!stream.receive(bytes)) return FrameType::kInvalid;
    const auto header = decode(bytes);
    return header ? header->type : FrameType::kInvalid;
  }

  inline static const Uuid kTransfer = Uuid::random();
  inline static const std::string kToken = "the token of both transfers";
  const SslContext server_ = context(TLS_server_method());
  const SslContext client_ = context(TLS_client_method());
  Bytes region_ = Bytes(1000);
  test::LoopbackListener listener_;
  const std::unique_ptr<TcpReceiver> receiver_ = receive_tcp({.tls = server_.get(),
                                                              .verify_peer = accept_any_peer,
                                                              .token = kToken,
                                                              .transfer = kTransfer});
};

TEST_F(BindingHostile, TokenIsAcceptedForItsTransfer) {
  const Status sent = send(kTransfer);
  EXPECT_TRUE(sent) << sent.error().message();
}

TEST_F(BindingHostile, TokenOfAnotherTransferIsRefused) {
  const Status sent = send(Uuid::random());
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code(), Code::kPermissionDenied) << sent.error().message();
  EXPECT_EQ(region_, Bytes(region_.size()));
}

TEST_F(BindingHostile, PlainTokenIsRefused) {
  const auto stream = shake_hands();
  EXPECT_EQ(answer(*stream, kToken), FrameType::kError);
}

TEST_F(BindingHostile, ProofOfAnotherConnectionIsRefused) {
  const auto first = shake_hands();
  const std::string shown = first->token_proof(kToken);
  const auto second = shake_hands();
  EXPECT_EQ(answer(*second, shown), FrameType::kError);
  EXPECT_EQ(answer(*first, shown), FrameType::kWelcome);
}

}  // namespace
}  // namespace gcr::transport

// TLS on the TCP transport: which peers are accepted, and that nothing falls back to plain.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "tests/support/tcp_relay.h"
#include "tests/support/test_certificates.h"
#include "transport/tcp/tcp.h"

namespace gcr::transport {
namespace {

using test::LoopbackListener;
using test::PemPair;
using test::SslContext;
using test::TestAuthority;

Status accept_any_peer(SSL*) { return {}; }

/// One sender connects to one receiver, with options per test.
class TlsTest : public testing::Test {
 protected:
  SslContext server(const PemPair& own) const {
    return test::make_context(TLS_server_method(), own, authority_.certificate());
  }
  SslContext client(const PemPair& own) const {
    return test::make_context(TLS_client_method(), own, authority_.certificate());
  }

  Status connect_both(const TcpOptions& sender, TcpReceiverOptions receiver_options,
                      const std::string& host) {
    const auto receiver = receive_tcp(std::move(receiver_options));
    GCR_TRY(receiver->add_region(1, region_));
    std::jthread acceptor([&] {
      while (UniqueFd socket = listener_.accept())
        (void)receiver->add_connection(std::move(socket));
    });
    auto channel = connect({{host, listener_.port()}}, sender);
    Status status;
    if (channel) {
      status = (*channel)->write(1, 0, std::vector<std::byte>(region_.size(), std::byte{7}));
      if (status) status = (*channel)->flush();
    } else {
      status = channel.error();
    }
    listener_.stop();
    return status;
  }

  Status connect_both(SSL_CTX* sender, SSL_CTX* receiver) {
    return connect_both({.tls = sender, .verify_peer = accept_any_peer},
                        {.tls = receiver, .verify_peer = accept_any_peer}, "localhost");
  }

  TestAuthority authority_;
  TestAuthority stranger_{"stranger"};
  LoopbackListener listener_;
  std::vector<std::byte> region_ = std::vector<std::byte>(100'000);
};

TEST_F(TlsTest, PeersOfOneAuthorityConnect) {
  const SslContext ours = client(authority_.issue());
  const SslContext theirs = server(authority_.issue());
  const Status connected = connect_both(ours.get(), theirs.get());
  EXPECT_TRUE(connected) << connected.error().message();
  EXPECT_EQ(region_.back(), std::byte{7});
}

TEST_F(TlsTest, ServerOfAnotherAuthorityIsRefusedByTheSender) {
  const SslContext ours = client(authority_.issue());
  const SslContext theirs = server(stranger_.issue());
  const Status connected = connect_both(ours.get(), theirs.get());
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code(), Code::kPermissionDenied) << connected.error().message();
}

TEST_F(TlsTest, ExpiredCertificateIsRefusedOnEitherSide) {
  const PemPair expired = authority_.issue({.expired = true});
  const SslContext good_client = client(authority_.issue());
  const SslContext good_server = server(authority_.issue());
  const SslContext old_client = client(expired);
  const SslContext old_server = server(expired);
  const Status by_sender = connect_both(good_client.get(), old_server.get());
  ASSERT_FALSE(by_sender);
  EXPECT_EQ(by_sender.error().code(), Code::kPermissionDenied) << by_sender.error().message();
  EXPECT_NE(by_sender.error().message().find("expired"), std::string::npos);
}

TEST_F(TlsTest, ExpiredSenderLearnsTheReason) {
  const SslContext old_client = client(authority_.issue({.expired = true}));
  const SslContext good_server = server(authority_.issue());
  const Status connected = connect_both(old_client.get(), good_server.get());
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code(), Code::kPermissionDenied) << connected.error().message();
  EXPECT_NE(connected.error().message().find("expired"), std::string::npos)
      << connected.error().message();
}

TEST_F(TlsTest, SenderChecksTheRoleToo) {
  const SslContext ours = client(authority_.issue());
  const SslContext theirs = server(authority_.issue());
  const Status connected =
      connect_both({.tls = ours.get(),
                    .verify_peer = [](SSL*) -> Status {
                      return Error(Code::kPermissionDenied, "that is no agent");
                    }},
                   {.tls = theirs.get(), .verify_peer = accept_any_peer}, "127.0.0.1");
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code(), Code::kPermissionDenied);
  EXPECT_NE(connected.error().message().find("that is no agent"), std::string::npos);
}

TEST_F(TlsTest, AuthenticatedCipherIsAes128Gcm) {
  const SslContext ours = client(authority_.issue());
  const SslContext theirs = server(authority_.issue());
  std::string cipher;
  const Status connected =
      connect_both({.tls = ours.get(),
                    .verify_peer = [&](SSL* ssl) -> Status {
                      cipher = SSL_get_cipher_name(ssl);
                      return {};
                    }},
                   {.tls = theirs.get(), .verify_peer = accept_any_peer}, "127.0.0.1");
  EXPECT_TRUE(connected);
  EXPECT_EQ(cipher, "TLS_AES_128_GCM_SHA256");
}

TEST_F(TlsTest, OlderTlsIsRefusedEvenIfTheContextAllowsIt) {
  SslContext ours = client(authority_.issue());
  const SslContext theirs = server(authority_.issue());
  SSL_CTX_set_min_proto_version(ours.get(), TLS1_2_VERSION);
  SSL_CTX_set_max_proto_version(ours.get(), TLS1_2_VERSION);
  EXPECT_FALSE(connect_both(ours.get(), theirs.get()));
}

TEST_F(TlsTest, PlainSenderCannotReachATlsReceiver) {
  const SslContext theirs = server(authority_.issue());
  EXPECT_FALSE(
      connect_both({}, {.tls = theirs.get(), .verify_peer = accept_any_peer}, "127.0.0.1"));
  EXPECT_EQ(region_.back(), std::byte{0});
}

TEST_F(TlsTest, TlsSenderCannotReachAPlainReceiver) {
  const SslContext ours = client(authority_.issue());
  EXPECT_FALSE(connect_both({.tls = ours.get(), .verify_peer = accept_any_peer}, {}, "127.0.0.1"));
  EXPECT_EQ(region_.back(), std::byte{0});
}

TEST_F(TlsTest, TlsWithoutARoleCheckIsAnInvalidArgument) {
  const SslContext ours = client(authority_.issue());
  const Status connected = connect_both({.tls = ours.get()}, {}, "127.0.0.1");
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code(), Code::kInvalidArgument);
}

TEST(TcpConnect, ImpossibleOptionsAreInvalidArguments) {
  const TcpOptions impossible[] = {
      {.lanes = 0}, {.lanes = 65}, {.token = std::string(kMaxTokenBytes + 1, 'x')}};
  for (const TcpOptions& options : impossible) {
    const auto channel = connect({{"127.0.0.1", 1}}, options);
    ASSERT_FALSE(channel);
    EXPECT_EQ(channel.error().code(), Code::kInvalidArgument);
  }
}

TEST(TcpConnect, RefusedConnectionIsUnavailable) {
  std::uint16_t port = 0;
  { port = LoopbackListener().port(); }
  const auto channel = connect({{"127.0.0.1", port}}, {});
  ASSERT_FALSE(channel);
  EXPECT_EQ(channel.error().code(), Code::kUnavailable);
  EXPECT_NE(channel.error().message().find("127.0.0.1 port " + std::to_string(port)),
            std::string::npos)
      << channel.error().message();
}

}  // namespace
}  // namespace gcr::transport

// A Stream under TLS, over TCP, protected by the kernel or by the records. In the machine of
// scripts/guest it must be the kernel.
#include "transport/tcp/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdlib>
#include <future>
#include <random>
#include <vector>

#include "src/base/units.h"
#include "tests/transport/stream/handshake.h"

namespace gcr::transport {
namespace {

using test::connected_pair;
using test::test_contexts;

using Bytes = std::vector<std::byte>;

constexpr std::size_t kMany = 5 * kMiB + 77;

Status accept_any_peer(SSL* /*ssl*/) { return {}; }

Bytes random_bytes(std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

HeaderBytes some_header() { return encode(FrameHeader{.type = FrameType::kEnd}); }

/// Whether the kernel has TLS: the check makes the socket unusable.
bool kernel_has_tls() {
  const auto [client, server] = connected_pair();
  return ::setsockopt(client.get(), IPPROTO_TCP, TCP_ULP, "tls", sizeof "tls") == 0;
}

class StreamUnderTls : public testing::Test {
 protected:
  StreamUnderTls() : StreamUnderTls(connected_pair()) {}

  /// Both handshakes; the results of the client and the server.
  std::pair<Status, Status> shake_hands(SSL_CTX* client,
                                        const VerifyPeer& of_server = accept_any_peer) {
    auto accepted = std::async(std::launch::async, [&] {
      auto result =
          server_.start_tls(test_contexts().server.get(), Stream::Side::kServer, of_server);
      if (!result) (void)server_.send(Bytes(5, std::byte{7}));
      return result;
    });
    Status connected = client_.start_tls(client, Stream::Side::kClient, accept_any_peer);
    return {std::move(connected), accepted.get()};
  }

  void expect_shaken() {
    const auto [connected, accepted] = shake_hands(test_contexts().client.get());
    ASSERT_TRUE(connected) << connected.error().message();
    ASSERT_TRUE(accepted) << accepted.error().message();
  }

  Stream client_;
  Stream server_;

 private:
  explicit StreamUnderTls(std::pair<UniqueFd, UniqueFd> sockets)
      : client_(std::move(sockets.first)), server_(std::move(sockets.second)) {}
};

/// Sends `bytes` from one to the other as frames would be, with a new key after each if key updates
/// are available, and compares.
Status pass(Stream& from, Stream& to, const Bytes& bytes) {
  const HeaderBytes header = some_header();
  auto sent = std::async(std::launch::async, [&]() -> Status {
    for (int i = 0; i < 3; ++i) {
      GCR_TRY(from.send(header, bytes));
      GCR_TRY(from.send(header, {}));
      if (!from.kernel_seals()) GCR_TRY(from.rekey());
    }
    return {};
  });
  Bytes got(bytes.size());
  HeaderBytes got_header{};
  for (int i = 0; i < 3; ++i) {
    for (const std::span<std::byte> payload : {std::span(got), std::span(got).first(0)}) {
      GCR_TRY(to.receive(got_header));
      GCR_TRY(to.receive(payload));
      if (got_header != header || got != bytes) return Error(Code::kDataLoss, "other bytes");
    }
  }
  return sent.get();
}

TEST_F(StreamUnderTls, BothDirectionsWorkAcrossKeyUpdates) {
  expect_shaken();
  for (const std::size_t size : {std::size_t{1}, std::size_t{16352}, std::size_t{16384}, kMany}) {
    auto other_way = std::async(std::launch::async,
                                [&] { return pass(server_, client_, random_bytes(size, 1)); });
    const Status one_way = pass(client_, server_, random_bytes(size, 2));
    EXPECT_TRUE(one_way) << size << ": " << one_way.error().message();
    const Status back = other_way.get();
    EXPECT_TRUE(back) << size << ": " << back.error().message();
  }
}

TEST_F(StreamUnderTls, KernelTlsIsUsedIfAvailable) {
  ASSERT_TRUE(std::getenv("GCR_IN_GUEST") == nullptr || kernel_has_tls());
  expect_shaken();
  for (const Stream* stream : {&client_, &server_}) {
    EXPECT_EQ(stream->kernel_seals(), kernel_has_tls());
    EXPECT_EQ(stream->kernel_opens(), kernel_has_tls());
  }
  const Status changed = client_.rekey();
  EXPECT_EQ(changed.has_value(), !kernel_has_tls());
}

TEST_F(StreamUnderTls, ClientLearnsWhyItsRoleIsRefused) {
  const auto [connected, accepted] = shake_hands(
      test_contexts().client.get(), [](SSL*) { return Error(Code::kPermissionDenied, "no"); });
  EXPECT_TRUE(connected);
  ASSERT_FALSE(accepted);
  Bytes said(5);
  EXPECT_TRUE(client_.receive(said));
  EXPECT_THAT(said, testing::Each(std::byte{7}));
}

TEST_F(StreamUnderTls, InvalidCertificatePassesNoData) {
  const auto [connected, accepted] = shake_hands(test_contexts().strange_client.get());
  ASSERT_FALSE(connected);
  ASSERT_FALSE(accepted);
  EXPECT_EQ(connected.error().code(), Code::kPermissionDenied);
  EXPECT_EQ(accepted.error().code(), Code::kPermissionDenied);
  Bytes bytes(5);
  for (Stream* stream : {&client_, &server_}) {
    EXPECT_EQ(stream->send(bytes).error().code(), Code::kUnavailable);
    EXPECT_EQ(stream->send(some_header(), bytes).error().code(), Code::kUnavailable);
    EXPECT_EQ(stream->receive(bytes).error().code(), Code::kUnavailable);
  }
}

TEST_F(StreamUnderTls, EndOfStreamIsSeenEverywhere) {
  expect_shaken();
  ASSERT_TRUE(client_.send(Bytes(10)));
  client_.shut_down();
  Bytes bytes(11);
  const Status received = server_.receive(bytes);
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().code(), Code::kUnavailable);
}

TEST(StreamsAndRecords, KernelAndUserSpaceTlsInteroperate) {
  auto [socket, other] = connected_pair();
  Stream stream(std::move(socket));
  const Bytes plain = random_bytes(40000, 3);
  auto records = std::async(std::launch::async, [&, fd = std::move(other)]() -> Result<Bytes> {
    const test::Secrets secrets = test::shake_hands(fd, false, "TLS_AES_128_GCM_SHA256");
    GCR_ASSIGN(RecordSealer sealer, RecordSealer::create(secrets.server));
    std::span<const std::byte> first = plain;
    std::span<const std::byte> none;
    while (!first.empty()) GCR_TRY(sealer.add(first, none));
    const auto sealed = sealer.sealed();
    if (::send(fd.get(), sealed.data(), sealed.size(), 0) != std::ssize(sealed)) {
      return Error(Code::kIo, "not sent");
    }
    GCR_ASSIGN(RecordOpener opener, RecordOpener::create(secrets.client));
    Bytes got(plain.size());
    for (std::size_t at = 0; at < got.size();) {
      GCR_ASSIGN(const std::size_t count, opener.open(std::span(got).subspan(at)));
      at += count;
      if (count > 0) continue;
      const auto room = opener.room();
      const ssize_t received = ::recv(fd.get(), room.data(), room.size(), 0);
      if (received <= 0) return Error(Code::kIo, "not received");
      opener.add(static_cast<std::size_t>(received));
    }
    return got;
  });
  ASSERT_TRUE(
      stream.start_tls(test_contexts().client.get(), Stream::Side::kClient, accept_any_peer));
  Bytes got(plain.size());
  EXPECT_TRUE(stream.receive(got));
  EXPECT_EQ(got, plain);
  EXPECT_TRUE(stream.send(plain));
  const auto back = records.get();
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(*back, plain);
}

}  // namespace
}  // namespace gcr::transport

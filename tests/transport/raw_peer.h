// A peer that is a raw socket and sends what a test wants, and a receiver for it.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/tcp_relay.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/tcp.h"

namespace gcr::transport {

using Bytes = std::vector<std::byte>;

inline constexpr RegionId kRegion = 1;
inline constexpr std::chrono::seconds kBound{60};

/// A condition that another thread makes true.
inline bool becomes_true(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kBound;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

inline Bytes frame(FrameHeader header, const Bytes& payload = {}) {
  const HeaderBytes bytes = encode(header);
  Bytes whole(bytes.size() + payload.size());
  std::copy(payload.begin(), payload.end(), std::copy(bytes.begin(), bytes.end(), whole.begin()));
  return whole;
}

inline const Uuid kSession = Uuid::random();

inline Bytes hello_frame(const Hello& hello) {
  const HelloBytes bytes = encode(hello);
  return frame({.type = FrameType::kHello, .length_bytes = kHelloBytes},
               Bytes(bytes.begin(), bytes.end()));
}

/// A valid hello of one of two lanes, except for the token.
inline Bytes hello_frame(const std::string& token = "token", std::uint16_t lane = 0) {
  return hello_frame(Hello{.lane = lane, .lanes = 2, .session = kSession, .token = token});
}

/// A socket of a peer that sends what a test wants. Each wait for the other side is bounded.
class RawPeer {
 public:
  explicit RawPeer(UniqueFd socket) : socket_(std::move(socket)) {
    const timeval bound{.tv_sec = kBound.count(), .tv_usec = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof bound);
  }

  void send(const Bytes& bytes) const {
    ASSERT_EQ(::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  void end() const { ::shutdown(socket_.get(), SHUT_WR); }

  Result<FrameHeader> receive_header() const {
    HeaderBytes bytes;
    if (::recv(socket_.get(), bytes.data(), bytes.size(), MSG_WAITALL) != kHeaderBytes) {
      return Error(Code::kUnavailable, "the other side ended");
    }
    return decode(bytes);
  }

  /// The next frame, which must be an error.
  Error receive_error() const {
    const auto header = receive_header();
    if (!header) return header.error();
    if (header->type != FrameType::kError) return Error(Code::kInternal, "not an error");
    Bytes payload(header->length_bytes);
    if (::recv(socket_.get(), payload.data(), payload.size(), MSG_WAITALL) !=
        static_cast<ssize_t>(payload.size())) {
      return Error(Code::kUnavailable, "the other side ended in an error");
    }
    return decode_error(payload);
  }

  /// The next frame, which must be a write, with its payload; otherwise nullopt.
  std::optional<std::pair<FrameHeader, Bytes>> receive_write() const {
    const auto header = receive_header();
    if (!header || header->type != FrameType::kWrite) return std::nullopt;
    Bytes payload(header->length_bytes);
    if (::recv(socket_.get(), payload.data(), payload.size(), MSG_WAITALL) !=
        static_cast<ssize_t>(payload.size())) {
      return std::nullopt;
    }
    return std::pair{*header, std::move(payload)};
  }

 private:
  UniqueFd socket_;
};

/// A receiver with one region, and a way to reach it with raw sockets.
class RawSenderTest : public testing::Test {
 protected:
  explicit RawSenderTest(TcpReceiverOptions options = {})
      : receiver_(receive_tcp(with_defaults(std::move(options)))) {
    EXPECT_TRUE(receiver_->add_region(kRegion, region_));
  }

  RawPeer connect() {
    UniqueFd ours = test::connect_loopback(listener_.port());
    EXPECT_TRUE(receiver_->add_connection(listener_.accept()));
    return RawPeer(std::move(ours));
  }

  /// A peer that was accepted.
  RawPeer enter(std::uint16_t lane = 0) {
    RawPeer peer = connect();
    peer.send(hello_frame("token", lane));
    const auto welcome = peer.receive_header();
    EXPECT_TRUE(welcome && welcome->type == FrameType::kWelcome);
    return peer;
  }

  void expect_untouched() const {
    EXPECT_EQ(region_, Bytes(region_.size(), std::byte{0}));
    EXPECT_EQ(landed_, 0);
  }

  Bytes region_ = Bytes(1000);
  std::atomic<int> landed_ = 0;
  test::LoopbackListener listener_;
  std::unique_ptr<TcpReceiver> receiver_;

 private:
  TcpReceiverOptions with_defaults(TcpReceiverOptions options) {
    options.token = "token";
    options.on_landed = [this, then = options.on_landed](auto region, auto offset,
                                                         auto length) -> Status {
      ++landed_;
      return then ? then(region, offset, length) : Status{};
    };
    return options;
  }
};

}  // namespace gcr::transport

// Several addresses, and IPv6 addresses.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <thread>

#include "tests/support/tcp_relay.h"
#include "transport/tcp/tcp.h"

namespace gcr::transport {
namespace {

using test::LoopbackListener;
using Bytes = std::vector<std::byte>;

/// A port without a listener.
std::uint16_t closed_port() { return LoopbackListener().port(); }

/// A receiver with a listening socket of either family.
class Listening {
 public:
  explicit Listening(int socket) : socket_(socket) {
    EXPECT_TRUE(receiver_->add_region(1, region_));
    acceptor_ = std::thread([this] {
      for (;;) {
        UniqueFd accepted(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!accepted) return;
        (void)receiver_->add_connection(std::move(accepted));
      }
    });
  }
  ~Listening() {
    ::shutdown(socket_.get(), SHUT_RDWR);
    acceptor_.join();
  }

  /// A listening socket at `address` of `scope` (0: none).
  static int listen_at(const char* address, unsigned scope) {
    sockaddr_in6 at{};
    at.sin6_family = AF_INET6;
    at.sin6_scope_id = scope;
    EXPECT_EQ(::inet_pton(AF_INET6, address, &at.sin6_addr), 1);
    const int socket = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0) << address;
    EXPECT_EQ(::listen(socket, 16), 0);
    return socket;
  }

  std::uint16_t port() const {
    sockaddr_in6 at{};
    socklen_t length = sizeof at;
    EXPECT_EQ(::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&at), &length), 0);
    return ntohs(at.sin6_port);
  }

  const TcpReceiver& receiver() const { return *receiver_; }
  const Bytes& region() const { return region_; }

 private:
  Bytes region_ = Bytes(100'000);
  const std::unique_ptr<TcpReceiver> receiver_ = receive_tcp({.token = "token"});
  UniqueFd socket_;
  std::thread acceptor_;
};

/// Sends data through `host` to a receiver that listens at `address`.
void expect_reached(const std::string& host, const char* address, unsigned scope) {
  const Listening listening(Listening::listen_at(address, scope));
  auto channel = connect({{host, listening.port()}}, {.lanes = 2, .token = "token"});
  ASSERT_TRUE(channel) << channel.error().message();
  const Bytes sent(100'000, std::byte{5});
  ASSERT_TRUE((*channel)->write(1, 0, sent));
  EXPECT_EQ(listening.region(), sent);
}

/// Runs `test` in its own network namespace, whose loopback interface has a link-local address. The
/// kernel adds the route to it later than the address.
void in_own_network(const std::function<void()>& test) {
  std::thread([&] {
    ASSERT_EQ(::unshare(CLONE_NEWNET), 0);
    ASSERT_EQ(std::system("ip link set lo up && ip -6 addr add fe80::1/64 dev lo nodad"), 0);
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::system("ip -6 route show table local | grep -q 'local fe80::1 '") != 0) {
      ASSERT_LT(std::chrono::steady_clock::now(), limit);
    }
    test();
  }).join();
}

TEST(TcpAddresses, Ipv6AddressIsReached) {
  in_own_network([] { expect_reached("::1", "::1", 0); });
}

TEST(TcpAddresses, LinkLocalAddressIsReachedThroughItsInterface) {
  in_own_network([] { expect_reached("fe80::1%lo", "fe80::1", ::if_nametoindex("lo")); });
}

TEST(TcpAddresses, UnknownInterfaceIsUnavailable) {
  const auto channel = connect({{"fe80::1%nosuch", 1}}, {});
  ASSERT_FALSE(channel);
  EXPECT_EQ(channel.error().code(), Code::kUnavailable);
}

TEST(TcpAddresses, LanesUseTheAddressesInTurn) {
  LoopbackListener listeners[3];
  const auto receiver = receive_tcp({.token = "token"});
  std::vector<std::future<void>> acceptors;
  // Five lanes over three addresses: two, two and one.
  for (std::size_t i = 0; i < 3; ++i) {
    acceptors.push_back(std::async(std::launch::async, [&, i] {
      for (std::size_t lane = i; lane < 5; lane += 3) {
        EXPECT_TRUE(receiver->add_connection(listeners[i].accept()));
      }
    }));
  }
  std::vector<std::string> notes = {"of before"};
  const auto channel = connect({{"127.0.0.1", listeners[0].port()},
                                {"127.0.0.1", listeners[1].port()},
                                {"127.0.0.1", listeners[2].port()}},
                               {.lanes = 5, .token = "token"}, &notes);
  ASSERT_TRUE(channel) << channel.error().message();
  for (auto& acceptor : acceptors) acceptor.get();
  EXPECT_EQ(receiver->lanes(), 5U);
  EXPECT_TRUE(notes.empty());
}

TEST(TcpAddresses, SilentAddressIsSkippedAndNamed) {
  LoopbackListener listener;
  const auto receiver = receive_tcp({.token = "token"});
  std::jthread acceptor([&] {
    for (int lane = 0; lane < 3; ++lane) (void)receiver->add_connection(listener.accept());
  });
  const std::uint16_t closed = closed_port();
  std::vector<std::string> notes;
  const auto channel =
      connect({{"127.0.0.1", closed}, {"127.0.0.1", listener.port()}, {"no.such.host.invalid", 1}},
              {.lanes = 3, .token = "token"}, &notes);
  ASSERT_TRUE(channel) << channel.error().message();
  EXPECT_EQ(receiver->lanes(), 3U);
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_NE(notes[0].find("no.such.host.invalid"), std::string::npos) << notes[0];
  EXPECT_NE(notes[1].find("port " + std::to_string(closed) + " is not used"), std::string::npos)
      << notes[1];
}

TEST(TcpAddresses, ErrorNamesAllSilentAddresses) {
  const std::uint16_t first = closed_port();
  const std::uint16_t second = closed_port();
  const auto channel = connect({{"127.0.0.1", first}, {"127.0.0.1", second}}, {.lanes = 2});
  ASSERT_FALSE(channel);
  EXPECT_EQ(channel.error().code(), Code::kUnavailable);
  for (const std::uint16_t port : {first, second}) {
    EXPECT_NE(channel.error().message().find(std::to_string(port)), std::string::npos)
        << channel.error().message();
  }
}

TEST(TcpAddresses, NoAddressIsUnavailable) {
  const auto channel = connect({}, {});
  ASSERT_FALSE(channel);
  EXPECT_EQ(channel.error().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace gcr::transport

// Which addresses replace which, and which ports are free.

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "migrate-agent/process/inspect/sockets.h"
#include "src/base/unique_fd.h"

namespace gcr::process {
namespace {

TEST(Addresses, HostIndependentAddressesStay) {
  const Addresses addresses("192.0.2.1");
  for (const char* address : {"0.0.0.0", "::", "127.0.0.1", "127.0.0.53", "::1", "224.0.0.251",
                              "255.255.255.255", "ff02::fb"}) {
    EXPECT_EQ(addresses.here(address), address);
  }
}

TEST(Addresses, HostAddressesBecomeTheReachedOne) {
  const Addresses addresses("192.0.2.1");
  EXPECT_EQ(addresses.here("198.51.100.7"), "192.0.2.1");
  EXPECT_EQ(addresses.here("::ffff:198.51.100.7"), "192.0.2.1");
  EXPECT_EQ(Addresses("::ffff:192.0.2.1").here("198.51.100.7"), "192.0.2.1");
  EXPECT_EQ(Addresses("2001:db8::9").here("2001:db8::1"), "2001:db8::9");
}

TEST(Addresses, SomeAddressesHaveNoReplacement) {
  const Addresses addresses("192.0.2.1");
  for (const char* address : {"2001:db8::1", "fe80::1", "169.254.7.7", "", "localhost"}) {
    EXPECT_EQ(addresses.here(address), std::nullopt) << address;
  }
  EXPECT_EQ(Addresses("").here("198.51.100.7"), std::nullopt);
}

/// A listener whose options would allow others on its port.
class Listener {
 public:
  Listener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEPORT, &yes, sizeof(yes));
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (::bind(socket_.get(), generic, length) != 0 || ::listen(socket_.get(), 1) != 0 ||
        ::getsockname(socket_.get(), generic, &length) != 0) {
      throw std::runtime_error("cannot listen");
    }
    port = ntohs(address.sin_port);
  }
  void close() { socket_.reset(); }

  std::uint16_t port = 0;

 private:
  UniqueFd socket_;
};

/// On a port that no other socket of this host uses.
Listener listener_alone() {
  for (int attempt = 0;; ++attempt) {
    Listener listener;
    if (check_free("tcp", "127.0.0.2", listener.port) &&
        check_free("udp", "127.0.0.1", listener.port)) {
      return listener;
    }
    if (attempt == 20) throw std::runtime_error("no port is free but for this listener");
  }
}

TEST(CheckFree, PortWithAListenerIsTakenDespiteReuseport) {
  Listener listener = listener_alone();
  for (const char* address : {"127.0.0.1", "0.0.0.0", "::"}) {
    const Status taken = check_free("tcp", address, listener.port);
    ASSERT_FALSE(taken) << address;
    EXPECT_EQ(taken.error().code(), Code::kRefused);
  }
  listener.close();
  EXPECT_TRUE(check_free("tcp", "127.0.0.1", listener.port));
}

/// Of a server that does not set SO_REUSEADDR, and closes its connection first.
TEST(CheckFree, ClosedConnectionsDoNotBlockAPort) {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(listener.get(), generic, length), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(::getsockname(listener.get(), generic, &length), 0);
  const std::uint16_t port = ntohs(address.sin_port);
  UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(client.get(), generic, length), 0);
  UniqueFd served(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_FALSE(check_free("tcp", "127.0.0.1", port)) << "it listens";
  ::shutdown(listener.get(), SHUT_RDWR);
  EXPECT_FALSE(check_free("tcp", "127.0.0.1", port)) << "a connection is there";
  served.reset();
  client.reset();
  const auto left_over = [port] {
    const auto sockets = internet_sockets(::getpid());
    return std::ranges::any_of(sockets, [port](const InternetSocket& one) {
      return one.port == port && one.is_left_over();
    });
  };
  while (!left_over()) std::this_thread::yield();
  EXPECT_TRUE(check_free("tcp", "127.0.0.1", port));
  EXPECT_FALSE(left_over());
}

TEST(CheckFree, AddressOfAnotherHostIsRefused) {
  EXPECT_FALSE(check_free("tcp", "192.0.2.77", 80));
  EXPECT_FALSE(check_free("tcp", "nowhere", 80));
}

}  // namespace
}  // namespace gcr::process

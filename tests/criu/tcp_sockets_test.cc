// TCP sockets of processes, here of the test itself: locked, repaired, released.
#include "migrate-agent/criu/sockets/tcp_sockets.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <vector>

#include "src/base/unique_fd.h"

namespace gcr::criu {
namespace {

constexpr int kPatienceMs = 60'000;
constexpr int kMomentMs = 300;

int option(const UniqueFd& socket, int level, int name) {
  int value = -1;
  socklen_t length = sizeof(value);
  EXPECT_EQ(::getsockopt(socket.get(), level, name, &value, &length), 0);
  return value;
}

bool is_readable(const UniqueFd& socket, int timeout_ms) {
  pollfd watched{socket.get(), POLLIN, 0};
  return ::poll(&watched, 1, timeout_ms) == 1;
}

class TcpSockets : public testing::Test {
 protected:
  void SetUp() override {
    const int yes = 1;
    socklen_t length = sizeof(address_);
    auto* const generic = reinterpret_cast<sockaddr*>(&address_);
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    ASSERT_EQ(::bind(listener_.get(), generic, length), 0);
    ASSERT_EQ(::listen(listener_.get(), 1), 0);
    ASSERT_EQ(::getsockname(listener_.get(), generic, &length), 0);
    ASSERT_EQ(::connect(ours_.get(), generic, length), 0);
    theirs_ = UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ASSERT_TRUE(theirs_);
    sockaddr_in own{};
    ASSERT_EQ(::getsockname(ours_.get(), reinterpret_cast<sockaddr*>(&own), &length), 0);
    connection_ = {{"127.0.0.1", ntohs(own.sin_port)}, {"127.0.0.1", ntohs(address_.sin_port)}};
  }

  /// The state after a dump.
  static void repair(const UniqueFd& socket) {
    const int on = 1;
    ASSERT_EQ(::setsockopt(socket.get(), IPPROTO_TCP, TCP_REPAIR, &on, sizeof(on)), 0);
  }
  static bool is_in_repair(const UniqueFd& socket) {
    return option(socket, IPPROTO_TCP, TCP_REPAIR) == 1;
  }

  const std::vector<pid_t> self_{::getpid()};
  sockaddr_in address_{};
  UniqueFd listener_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  UniqueFd ours_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  UniqueFd theirs_;
  TcpConnection connection_;
};

TEST_F(TcpSockets, DataSentDuringALockArrivesAfterIt) {
  ASSERT_TRUE(lock_connections(self_));
  ASSERT_EQ(::send(ours_.get(), "x", 1, 0), 1);
  EXPECT_FALSE(is_readable(theirs_, kMomentMs));
  repair(ours_);
  repair(theirs_);
  const Status ended = end_repair(self_, Repaired::kAll);
  ASSERT_TRUE(ended) << ended.error().message();
  EXPECT_FALSE(is_in_repair(ours_) || is_in_repair(theirs_));
  EXPECT_TRUE(is_readable(theirs_, kPatienceMs));
  EXPECT_EQ(option(theirs_, SOL_SOCKET, SO_REUSEADDR), 1);  // as its listener's
  EXPECT_EQ(option(ours_, SOL_SOCKET, SO_REUSEADDR), 0);
  ASSERT_TRUE(end_repair(self_, Repaired::kAll));
}

TEST_F(TcpSockets, OutsideConnectionsAreNotLocked) {
  int pair[2];
  ASSERT_EQ(::pipe(pair), 0);
  const UniqueFd held(pair[1]);
  UniqueFd reading(pair[0]);
  const UniqueFd another(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(
      ::connect(another.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof(address_)), 0);
  UniqueFd outside(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(outside);
  const pid_t outsider = ::fork();
  if (outsider == 0) {
    ::close(held.get());
    char byte = 0;
    (void)!::read(reading.get(), &byte, 1);
    ::_exit(0);
  }
  outside.reset();
  ASSERT_TRUE(lock_connections(self_));
  repair(another);
  repair(ours_);
  repair(theirs_);
  const Status ended = end_repair(self_, Repaired::kOutside);
  ASSERT_TRUE(ended) << ended.error().message();
  EXPECT_FALSE(is_in_repair(another));
  EXPECT_TRUE(is_in_repair(ours_) && is_in_repair(theirs_));
  ASSERT_TRUE(end_repair(self_, Repaired::kAll));
  ::kill(outsider, SIGKILL);
  ::waitpid(outsider, nullptr, 0);
}

TEST_F(TcpSockets, HalfCloseIsSeenAsEndOfStream) {
  ASSERT_TRUE(end_connections(self_, {connection_}, {}));
  ASSERT_TRUE(is_readable(theirs_, kPatienceMs));
  char byte = 0;
  EXPECT_EQ(::recv(theirs_.get(), &byte, 1, 0), 0);
  EXPECT_EQ(::send(theirs_.get(), "x", 1, 0), 1);
  ASSERT_TRUE(is_readable(ours_, kPatienceMs));
  EXPECT_EQ(::recv(ours_.get(), &byte, 1, 0), 1);
}

TEST_F(TcpSockets, SelectedConnectionsAreReset) {
  ASSERT_TRUE(end_connections(self_, {}, {connection_}));
  char byte = 0;
  EXPECT_EQ(::recv(ours_.get(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST_F(TcpSockets, EndedProcessHasNone) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(lock_connections({child}));
  EXPECT_TRUE(end_repair({child}, Repaired::kAll));
}

}  // namespace
}  // namespace gcr::criu

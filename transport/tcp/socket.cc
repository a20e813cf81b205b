// The parts of Stream, and of making one, that concern the socket alone.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>

#include "transport/tcp/stream.h"

namespace gcr::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

int poll_timeout(steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30));
}

Result<Addresses> resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int result = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (result != 0) {
    return Error(Code::kUnavailable,
                 fmt::format("cannot resolve {}: {}", host, ::gai_strerror(result)));
  }
  return Addresses(list);
}

Status set_option(int fd, int level, int name, int value) {
  if (::setsockopt(fd, level, name, &value, sizeof value) != 0) {
    return Error::from_errno(errno, "setting up a data connection");
  }
  return {};
}

Status wait_connected(int fd, milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  pollfd entry{fd, POLLOUT, 0};
  int ready = 0;
  do {
    ready = ::poll(&entry, 1, poll_timeout(deadline));
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) {
    return Error(Code::kTimeout, fmt::format("no answer within {} ms", timeout.count()));
  }
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error != 0) return Error::from_errno(error, "connecting");
  return {};
}

Result<UniqueFd> connect_address(const addrinfo& address, milliseconds timeout) {
  UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Error::from_errno(errno, "creating a socket");
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return Error::from_errno(errno, "connecting");
    GCR_TRY(wait_connected(fd.get(), timeout));
  }
  GCR_TRY(set_blocking(fd.get()));
  return fd;
}

}  // namespace

Result<UniqueFd> connect_socket(const std::string& host, std::uint16_t port, milliseconds timeout) {
  const std::string doing = fmt::format("data connection to {} port {}", host, port);
  GCR_ASSIGN(const Addresses addresses, resolve(host, port));
  Error last(Code::kUnavailable, "no address");
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    auto socket = connect_address(*at, timeout);
    if (socket) return socket;
    last = std::move(socket).error();
  }
  return last.while_doing(doing);
}

Status set_blocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0) {
    return Error::from_errno(errno, "setting up a data connection");
  }
  return {};
}

Status tune_socket(int fd, milliseconds peer_timeout) {
  static constexpr int kProbes = 4;
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(peer_timeout).count();
  const int pause = static_cast<int>(std::clamp<std::int64_t>(seconds / (kProbes + 1), 1, 3600));
  GCR_TRY(set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1));
  GCR_TRY(set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(peer_timeout.count())));
  GCR_TRY(set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, pause));
  GCR_TRY(set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, pause));
  GCR_TRY(set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes));
  return set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

Status Stream::set_timeout(milliseconds timeout) {
  const timeval value{.tv_sec = timeout.count() / 1000, .tv_usec = timeout.count() % 1000 * 1000};
  for (const int name : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    if (::setsockopt(socket_.get(), SOL_SOCKET, name, &value, sizeof value) != 0) {
      return Error::from_errno(errno, "setting a time limit on a data connection");
    }
  }
  return {};
}

void Stream::shut_down() const { ::shutdown(socket_.get(), SHUT_RDWR); }

void Stream::linger(milliseconds limit) {
  ::shutdown(socket_.get(), SHUT_WR);
  const auto deadline = steady_clock::now() + limit;
  std::array<std::byte, 64 * kKiB> discarded;
  pollfd entry{socket_.get(), POLLIN, 0};
  while (::poll(&entry, 1, poll_timeout(deadline)) > 0 && steady_clock::now() < deadline) {
    if (::recv(socket_.get(), discarded.data(), discarded.size(), MSG_DONTWAIT) <= 0) return;
  }
}

}  // namespace gcr::transport

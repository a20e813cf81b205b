#include "transport/tcp/socket.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "transport/lane_thread.h"

namespace gcr::transport {
namespace {

using std::chrono::milliseconds;

Error cannot_connect(int errno_value) {
  return Error(Code::kUnavailable, Error::from_errno(errno_value, "connecting").message());
}

Status wait_connected(int fd, milliseconds timeout, int stop) {
  std::array<pollfd, 2> waits = {pollfd{fd, POLLOUT, 0}, pollfd{stop, POLLIN, 0}};
  GCR_ASSIGN(const bool ready, wait_ready(waits, timeout));
  if (!ready) {
    return Error(Code::kTimeout,
                 fmt::format("the peer did not answer within {} ms", timeout.count()));
  }
  if (waits[1].revents != 0) return Error(Code::kCancelled, "the transfer was cancelled");
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error != 0) return cannot_connect(error);
  return {};
}

Result<UniqueFd> connect_one(const SocketAddress& address, milliseconds timeout, int stop) {
  UniqueFd fd(::socket(address.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Error::from_errno(errno, "creating a socket");
  if (::connect(fd.get(), address.get(), address.length) != 0) {
    if (errno != EINPROGRESS) return cannot_connect(errno);
    GCR_TRY(wait_connected(fd.get(), timeout, stop));
  }
  GCR_TRY(set_blocking(fd.get(), true));
  return fd;
}

}  // namespace

Status tune_socket(int fd, milliseconds peer_timeout) {
  static constexpr int kProbes = 4;
  struct Option {
    int level;
    int name;
    int value;
  };
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(peer_timeout).count();
  const int pause = static_cast<int>(std::clamp<std::int64_t>(seconds / (kProbes + 1), 1, 3600));
  const int silence = static_cast<int>(peer_timeout.count());
  for (const Option& option :
       {Option{IPPROTO_TCP, TCP_NODELAY, 1}, Option{IPPROTO_TCP, TCP_USER_TIMEOUT, silence},
        Option{IPPROTO_TCP, TCP_KEEPIDLE, pause}, Option{IPPROTO_TCP, TCP_KEEPINTVL, pause},
        Option{IPPROTO_TCP, TCP_KEEPCNT, kProbes}, Option{SOL_SOCKET, SO_KEEPALIVE, 1}}) {
    if (::setsockopt(fd, option.level, option.name, &option.value, sizeof option.value) != 0) {
      return Error::from_errno(errno, "setting options of a data connection");
    }
  }
  return {};
}

Result<UniqueFd> dial(const std::vector<SocketAddress>& addresses, milliseconds timeout, int stop) {
  Error last(Code::kUnavailable, "the name has no address");
  for (const SocketAddress& address : addresses) {
    auto socket = connect_one(address, timeout, stop);
    if (socket || socket.error().code() == Code::kCancelled) return socket;
    last = std::move(socket).error();
  }
  return last;
}

}  // namespace gcr::transport

// The parts of Stream that concern only the socket.
#include <fcntl.h>
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

int poll_timeout(steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30));
}

Status set_option(int fd, int level, int name, int value) {
  if (::setsockopt(fd, level, name, &value, sizeof value) != 0) {
    return Error::from_errno(errno, "setting up a data connection");
  }
  return {};
}

}  // namespace

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

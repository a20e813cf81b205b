#include "transport/tcp/stream.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "transport/lane_thread.h"

namespace gcr::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

Error no_keys() {
  return Error(Code::kUnavailable, "the TLS handshake of a data connection has not succeeded");
}

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

Error Stream::ended() { return Error(Code::kUnavailable, "the peer closed the data connection"); }

Error Stream::socket_error(int errno_value, std::string_view doing) {
  if (errno_value == EAGAIN || errno_value == EWOULDBLOCK) {
    return Error(Code::kTimeout, std::string(doing) + ": the peer did not answer in time");
  }
  if (errno_value == EBADMSG) {  // the kernel's TLS
    return Error(Code::kProtocol, std::string(doing) + ": a TLS record failed authentication");
  }
  if (errno_value == EIO) {  // the kernel's TLS, which cannot change its key
    return Error(Code::kUnavailable,
                 std::string(doing) + ": kernel TLS cannot process a KeyUpdate");
  }
  if (errno_value == ETIMEDOUT) {
    return Error(Code::kUnavailable, std::string(doing) + ": the peer stopped answering");
  }
  return Error::from_errno(errno_value, doing);
}

Status Stream::send(std::span<const std::byte> bytes) {
  if (!usable_) return no_keys();
  return sealer_ ? send_records(bytes, {}) : send_to_socket(bytes);
}

Status Stream::send(const HeaderBytes& header, std::span<const std::byte> payload) {
  if (!usable_) return no_keys();
  if (sealer_) return send_records(header, payload);
  std::array<iovec, 2> parts = {
      iovec{const_cast<std::byte*>(header.data()), header.size()},
      iovec{const_cast<std::byte*>(payload.data()), payload.size()},
  };
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  ssize_t count = 0;
  do {
    count = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  } while (count < 0 && errno == EINTR);
  if (count < 0) return socket_error(errno, "sending data");
  const auto sent = static_cast<std::size_t>(count);
  if (sent < header.size()) {
    GCR_TRY(send_to_socket(std::span(header).subspan(sent)));
    return send_to_socket(payload);
  }
  return send_to_socket(payload.subspan(sent - header.size()));
}

Status Stream::send_to_socket(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return socket_error(errno, "sending data");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

Status Stream::send_records(std::span<const std::byte> first, std::span<const std::byte> second) {
  // A large payload gets records of its own, so that the receiver decrypts straight into place.
  std::span<const std::byte> none;
  const bool apart = second.size() >= kMaxRecordContentBytes;
  while (apart && !first.empty()) GCR_TRY(sealer_->add(first, none));
  while (!first.empty() || !second.empty()) {
    if (sealer_->full()) GCR_TRY(send_sealed());
    GCR_TRY(sealer_->add(first, second));
  }
  return send_sealed();
}

Status Stream::send_sealed() {
  const Status sent = send_to_socket(sealer_->sealed());
  sealer_->clear();
  return sent;
}

Status Stream::receive(std::span<std::byte> bytes) {
  if (!usable_) return no_keys();
  if (opener_) return receive_records(bytes);
  while (!bytes.empty()) {
    const ssize_t count = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_WAITALL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return socket_error(errno, "receiving data");
    if (count == 0) return ended();
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

Status Stream::receive_records(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    GCR_ASSIGN(const std::size_t opened, opener_->open(bytes));
    bytes = bytes.subspan(opened);
    if (opened > 0) continue;
    const std::span<std::byte> room = opener_->room();
    const ssize_t count = ::recv(socket_.get(), room.data(), room.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return socket_error(errno, "receiving data");
    if (count == 0) return ended();
    opener_->add(static_cast<std::size_t>(count));
  }
  return {};
}

Status Stream::rekey() {
  if (kernel_seals_) {
    return Error(Code::kUnavailable, "kernel TLS cannot change the key of a connection");
  }
  if (!sealer_) return {};
  GCR_TRY(sealer_->add_update());
  return send_sealed();
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
  for (;;) {
    pollfd wait{socket_.get(), POLLIN, 0};
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    const auto ready = wait_ready(std::span(&wait, 1), left);
    if (!ready || !*ready || steady_clock::now() >= deadline) return;
    if (::recv(socket_.get(), discarded.data(), discarded.size(), MSG_DONTWAIT) <= 0) return;
  }
}

}  // namespace gcr::transport

#include "tests/support/tcp_relay.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace gcr::test {
namespace {

// How often a flag is checked where nothing can wake the relay.
constexpr int kLookAgainMs = 5;

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// Closing this socket resets the connection instead of ending it in order.
void reset_on_close(const UniqueFd& socket) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

void send_at_once(const UniqueFd& socket) {
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

LoopbackListener::LoopbackListener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!socket_ || ::bind(socket_.get(), generic, length) != 0 ||
      ::listen(socket_.get(), 128) != 0 || ::getsockname(socket_.get(), generic, &length) != 0) {
    throw std::runtime_error("no port to listen on");
  }
  port_ = ntohs(address.sin_port);
}

UniqueFd LoopbackListener::accept() const {
  int fd = -1;
  do {
    fd = ::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC);
  } while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
  return UniqueFd(fd);
}

void LoopbackListener::stop() const { ::shutdown(socket_.get(), SHUT_RDWR); }

UniqueFd connect_loopback(std::uint16_t port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  // For an interrupted call, the next one returns the result.
  while (!socket || ::connect(socket.get(), generic, sizeof address) != 0) {
    if (errno == EISCONN) break;
    if (errno != EINTR && errno != EALREADY)
      throw std::system_error(errno, std::generic_category(), "cannot connect to this machine");
  }
  return socket;
}

TcpRelay::TcpRelay(std::uint16_t target_port)
    : target_port_(target_port),
      wake_(::eventfd(0, EFD_CLOEXEC)),
      acceptor_([this] { accept_all(); }) {}

TcpRelay::~TcpRelay() {
  ending_ = true;
  cut();
  listener_.stop();
  acceptor_.join();
  for (Link& link : links_) link.thread.join();
}

void TcpRelay::cut() {
  cut_ = true;
  ::eventfd_write(wake_.get(), 1);
}

void TcpRelay::cut_after(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  left_ = bytes;
  for_good_ = true;
}

void TcpRelay::cut_once() {
  ++generation_;
  ::eventfd_write(wake_.get(), 1);
}

void TcpRelay::cut_once_after(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  left_ = bytes;
  for_good_ = false;
}

/// How many of `size` bytes pass before the next cut, which happens if they are not more.
std::int64_t TcpRelay::count(const Link& link, std::int64_t size) {
  const std::lock_guard lock(mutex_);
  if (is_cut(link)) return 0;
  if (left_ > size) {
    if (left_ != kNever) left_ -= size;
    return size;
  }
  if (for_good_) cut_ = true;
  ++generation_;
  return std::exchange(left_, kNever);
}

void TcpRelay::stall() {
  stalled_ = true;
  ::eventfd_write(wake_.get(), 1);
}

void TcpRelay::accept_all() {
  while (UniqueFd left = listener_.accept()) {
    const unsigned generation = generation_;
    UniqueFd right;
    try {
      if (!cut_) right = connect_loopback(target_port_);
    } catch (const std::runtime_error&) {  // no server listens there any more
    }
    if (!right) {
      reset_on_close(left);
      continue;
    }
    send_at_once(left);
    send_at_once(right);
    const std::lock_guard lock(mutex_);
    Link& link = links_.emplace_back();
    link.left = std::move(left);
    link.right = std::move(right);
    link.generation = generation;
    link.thread = std::thread([this, &link] { relay(link); });
  }
}

/// Forwards both directions until both have ended, or until the cut.
void TcpRelay::relay(Link& link) {
  bool left_open = true;
  bool right_open = true;
  bool woken = false;
  while (!is_cut(link) && (left_open || right_open)) {
    // Once woken, the eventfd would end every wait at once: from then on the flags are checked
    // every few milliseconds.
    std::array<pollfd, 3> entries = {
        pollfd{left_open && !stalled_ ? link.left.get() : -1, POLLIN, 0},
        pollfd{right_open && !stalled_ ? link.right.get() : -1, POLLIN, 0},
        pollfd{woken ? -1 : wake_.get(), POLLIN, 0}};
    if (::poll(entries.data(), entries.size(), woken ? kLookAgainMs : -1) < 0) break;
    woken = woken || entries[2].revents != 0;
    if (stalled_ || is_cut(link)) continue;
    if (entries[0].revents != 0) left_open = pass(link, link.left.get(), link.right.get());
    if (entries[1].revents != 0) right_open = pass(link, link.right.get(), link.left.get());
  }
  if (is_cut(link)) {
    reset_on_close(link.left);
    reset_on_close(link.right);
  }
  link.left.reset();
  link.right.reset();
}

/// Forwards the available data. False once this direction has ended, which is forwarded too.
bool TcpRelay::pass(const Link& link, int from, int to) {
  std::array<std::byte, 64 * 1024> buffer;
  const ssize_t got = ::recv(from, buffer.data(), buffer.size(), 0);
  auto size = static_cast<std::int64_t>(std::max<ssize_t>(got, 0));
  bool last = got <= 0;
  if (from == link.left.get() && !last) {
    size = count(link, size);
    last = is_cut(link);
  }
  for (std::int64_t sent = 0; sent < size;) {
    const ssize_t count = ::send(to, buffer.data() + sent, static_cast<std::size_t>(size - sent),
                                 MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      sent += count;
    } else if (errno != EAGAIN || (is_cut(link) && !last)) {
      return false;
    } else {
      pollfd entry{to, POLLOUT, 0};
      ::poll(&entry, 1, kLookAgainMs);
      if (ending_) return false;
    }
  }
  if (is_cut(link)) {
    ::eventfd_write(wake_.get(), 1);
  } else if (last) {
    ::shutdown(to, SHUT_WR);
  }
  return !last;
}

}  // namespace gcr::test

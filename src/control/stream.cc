#include "src/control/stream.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <cerrno>
#include <cstring>

#include "src/control/deadline.h"
#include "src/control/tls.h"
#include "src/control/wire.h"

namespace gcr::control {
namespace {

using asio::ip::tcp;

constexpr int kKeepaliveIdleSeconds = 10;
constexpr int kKeepaliveIntervalSeconds = 5;
constexpr int kKeepaliveProbes = 3;
constexpr int kUserTimeoutMilliseconds = 30'000;

/// Enables keepalive and timeouts, so that a peer that vanished silently is noticed within about 30
/// s.
void watch_for_vanished_peer(int socket) {
  const auto set = [socket](int level, int option, int value) {
    ::setsockopt(socket, level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveIntervalSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMilliseconds);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
}

tcp::endpoint to_tcp(const asio::generic::stream_protocol::endpoint& endpoint) {
  tcp::endpoint result;
  if (endpoint.size() > result.capacity()) return result;
  std::memcpy(result.data(), endpoint.data(), endpoint.size());
  return result;
}

}  // namespace

Stream::Stream(Socket socket, std::shared_ptr<asio::ssl::context> context)
    : socket_(std::move(socket)), context_(std::move(context)) {
  if (context_ == nullptr) return;
  watch_for_vanished_peer(socket_.native_handle());
  tls_ = std::make_unique<asio::ssl::stream<Socket&>>(socket_, *context_);
}

Result<Stream::Socket> Stream::adopt(const asio::any_io_executor& executor, UniqueFd& fd) {
  sockaddr_storage local{};
  socklen_t length = sizeof(local);
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &length) != 0) {
    return Error::from_errno(errno, "cannot use the accepted connection");
  }
  const int protocol = local.ss_family == AF_UNIX ? 0 : IPPROTO_TCP;
  Socket socket(executor);
  std::error_code error;
  socket.assign(asio::generic::stream_protocol(local.ss_family, protocol), fd.get(), error);
  if (error) return Error(Code::kIo, "cannot use the accepted connection: " + reason_of(error));
  (void)fd.release();
  return socket;
}

asio::awaitable<std::error_code> Stream::handshake(asio::ssl::stream_base::handshake_type side) {
  std::error_code error;
  if (tls_) co_await tls_->async_handshake(side, into(error));
  co_return error;
}

asio::awaitable<std::error_code> Stream::read(asio::mutable_buffer buffer) {
  std::error_code error;
  if (tls_) {
    co_await asio::async_read(*tls_, buffer, into(error));
  } else {
    co_await asio::async_read(socket_, buffer, into(error));
  }
  co_return error;
}

asio::awaitable<std::error_code> Stream::write(asio::const_buffer buffer) {
  std::error_code error;
  if (tls_) {
    co_await asio::async_write(*tls_, buffer, into(error));
  } else {
    co_await asio::async_write(socket_, buffer, into(error));
  }
  co_return error;
}

Result<uid_t> Stream::peer_uid() {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(socket_.native_handle(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return Error::from_errno(errno, "cannot tell who is at the other end of a local socket");
  }
  return credentials.uid;
}

std::string Stream::peer_address() {
  if (is_local()) return "local";
  std::error_code error;
  const tcp::endpoint remote = to_tcp(socket_.remote_endpoint(error));
  if (error) return "unknown address";
  return Endpoint{remote.address().to_string(), remote.port()}.to_string();
}

std::string Stream::local_host() {
  if (is_local()) return "";
  std::error_code error;
  const tcp::endpoint local = to_tcp(socket_.local_endpoint(error));
  return error ? "" : local.address().to_string();
}

std::size_t Stream::unacknowledged_bytes() {
  int bytes = 0;
  if (is_local() || ::ioctl(socket_.native_handle(), SIOCOUTQ, &bytes) != 0) return 0;
  return static_cast<std::size_t>(bytes);
}

void Stream::close() {
  std::error_code ignored;
  socket_.close(ignored);
}

asio::awaitable<void> Stream::drain(std::chrono::milliseconds timeout) {
  const Deadline deadline(executor(), timeout, [this] { close(); });
  std::error_code error;
  socket_.shutdown(Socket::shutdown_send, error);
  std::array<char, 4096> dropped{};
  while (!error) {
    co_await socket_.async_read_some(asio::buffer(dropped), into(error));
  }
  close();
}

}  // namespace gcr::control

// The byte stream under a control channel: a TCP connection with TLS, or a local socket without
// TLS, whose peer the kernel identifies.
#pragma once

#include <openssl/ssl.h>

#include <asio/any_io_executor.hpp>
#include <asio/awaitable.hpp>
#include <asio/generic/stream_protocol.hpp>
#include <asio/redirect_error.hpp>
#include <asio/ssl.hpp>
#include <asio/use_awaitable.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <system_error>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::control {

/// The completion token of every operation here: stores the failure in `error`.
inline auto into(std::error_code& error) {
  return asio::redirect_error(asio::use_awaitable, error);
}

/// One coroutine reads and one writes at a time; belongs to the thread that runs its executor.
class Stream {
 public:
  using Socket = asio::generic::stream_protocol::socket;

  /// Takes a connected TCP socket, which `context` gives TLS, or a Unix socket and no context.
  Stream(Socket socket, std::shared_ptr<asio::ssl::context> context);

  /// Adopts a descriptor, which stays the caller's on failure.
  static Result<Socket> adopt(const asio::any_io_executor& executor, UniqueFd& fd);

  bool is_local() const { return tls_ == nullptr; }
  SSL* ssl() { return tls_ ? tls_->native_handle() : nullptr; }
  Socket& socket() { return socket_; }
  asio::any_io_executor executor() { return socket_.get_executor(); }

  /// Does the TLS handshake; does nothing on a local socket.
  asio::awaitable<std::error_code> handshake(asio::ssl::stream_base::handshake_type side);

  /// Transfers the whole buffer, or returns an error.
  asio::awaitable<std::error_code> read(asio::mutable_buffer buffer);
  asio::awaitable<std::error_code> write(asio::const_buffer buffer);

  /// Returns the uid of the peer on a local socket. kIo if the kernel does not say.
  Result<uid_t> peer_uid();

  std::string peer_address();  ///< "10.0.0.2:7411", or "local"
  std::string local_host();    ///< "10.0.0.1"; empty on a local socket

  /// Bytes written that the peer's host has not acknowledged. 0 on a local socket.
  std::size_t unacknowledged_bytes();

  void close();

  /// Half-closes and reads to the end, then closes, at the latest after `timeout`. Closing a socket
  /// with unread input would reset the connection and could discard the last message.
  asio::awaitable<void> drain(std::chrono::milliseconds timeout);

 private:
  Socket socket_;
  std::shared_ptr<asio::ssl::context> context_;
  std::unique_ptr<asio::ssl::stream<Socket&>> tls_;
};

}  // namespace gcr::control

// One connection: a blocking socket, plain or under TLS 1.3. OpenSSL works on the socket itself, so
// nothing is buffered between it and the caller's memory but OpenSSL's one record.
#pragma once

#include <openssl/ssl.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "transport/tcp/frame.h"

namespace gcr::transport {

/// Makes calls on the socket wait.
Status set_blocking(int fd);

/// Sets what every lane wants of its socket: no delay, and an end to a peer that is silent for
/// `peer_timeout`, whether data is under way (TCP_USER_TIMEOUT) or not (keepalive).
Status tune_socket(int fd, std::chrono::milliseconds peer_timeout);

/// Thread-safe only where said. Fails with kUnavailable where the peer went away.
class Stream {
 public:
  explicit Stream(UniqueFd socket) : socket_(std::move(socket)) {}

  enum class Side { kClient, kServer };

  /// Puts TLS 1.3 on the socket; everything after it is encrypted. The peer's certificate must hold
  /// in `context`, and `verify_peer` must agree.
  Status start_tls(SSL_CTX* context, Side side, const VerifyPeer& verify_peer);

  /// Sends all of `bytes`. SIGPIPE never reaches the caller.
  Status send(std::span<const std::byte> bytes);

  /// Sends a header and its payload, together where that saves a packet.
  Status send(const HeaderBytes& header, std::span<const std::byte> payload);

  /// Fills `bytes`. An end of the stream, even at the start, is kUnavailable.
  Status receive(std::span<std::byte> bytes);

  /// Whether something can be received without waiting (an end or an error included).
  bool readable() const;

  /// Waits until something can be received (an end or an error included). Thread-safe. What TLS has
  /// taken from the socket already, only readable() knows.
  Status wait_readable() const;

  /// Whether one thread may send while another receives: TLS allows only one of them at a time.
  bool full_duplex() const { return !ssl_; }

  /// Bounds each wait for the peer from now on; zero: no bound. A wait that is too long is
  /// kTimeout.
  Status set_timeout(std::chrono::milliseconds timeout);

  /// Changes the sending key. Does nothing without TLS.
  Status rekey();

  /// Ends the connection in both directions and wakes whoever waits in it. Thread-safe, idempotent.
  void shut_down() const;

  /// Lets a last word reach the peer: ends our direction, then discards what the peer still sends
  /// until it ends too, at most for `limit`. (Closing a socket with unread bytes would reset it,
  /// and the peer could lose what we said.)
  void linger(std::chrono::milliseconds limit);

 private:
  struct FreeSsl {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  enum class Doing { kHandshake, kSend, kReceive };

  Error tls_error(int result, Doing doing) const;
  Status send_tls(std::span<const std::byte> bytes);
  Status receive_tls(std::span<std::byte> bytes);

  UniqueFd socket_;
  std::unique_ptr<SSL, FreeSsl> ssl_;
  std::unique_ptr<std::array<std::byte, SSL3_RT_MAX_PLAIN_LENGTH>> first_record_;
};

}  // namespace gcr::transport

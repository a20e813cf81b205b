// One connection: a blocking socket, plain or under TLS 1.3. OpenSSL performs the handshake
// (handshake.cc); after it, the kernel encrypts and decrypts if it can, else records.h does. In
// both cases bytes go from the caller's memory to the network, and from there into place, without
// another copy.
#pragma once

#include <openssl/ssl.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "transport/address.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/records.h"

namespace gcr::transport {

/// A value that binds a TLS connection to one transfer: TLS exports it from the handshake (RFC
/// 8446, 7.5; RFC 5705) with the transfer as context. Only the two ends of the handshake know it,
/// and it differs for each connection and each transfer.
using Binding = std::array<unsigned char, 32>;

/// Whether `error` is a network error, after which another connection may succeed.
inline bool is_network(const Error& error) {
  return error.code() == Code::kUnavailable || error.code() == Code::kTimeout;
}

/// Sets the socket options of a lane: no delay, and failure when the peer is silent for
/// `peer_timeout`, both with unacknowledged data (TCP_USER_TIMEOUT) and without (keepalive).
Status tune_socket(int fd, std::chrono::milliseconds peer_timeout);

/// Connects to the first of `addresses` that answers; `timeout` applies to each. Fails with
/// kCancelled as soon as `stop` is readable, with kTimeout if the last address did not answer, and
/// with kUnavailable otherwise. The socket blocks.
Result<UniqueFd> dial(const std::vector<SocketAddress>& addresses,
                      std::chrono::milliseconds timeout, int stop);

/// A connection. One thread may send while another receives; only shut_down() may be called from
/// any thread. All calls fail with kUnavailable if the peer is gone.
class Stream {
 public:
  explicit Stream(UniqueFd socket) : socket_(std::move(socket)) {}

  enum class Side { kClient, kServer };

  /// Performs a TLS 1.3 handshake that binds the connection to `transfer`; all later bytes are
  /// encrypted. The peer's certificate must be valid in `context`, and `verify_peer` must accept
  /// it; if it does not, the reason can still be sent. After any other failure the stream is
  /// unusable.
  Status start_tls(SSL_CTX* context, Side side, const VerifyPeer& verify_peer,
                   const Uuid& transfer = {});

  /// Returns the proof that this end knows `token`: under TLS a value that is valid only for this
  /// connection and its transfer, else the token itself.
  std::string token_proof(const std::string& token) const;

  /// Sends all of `bytes`. SIGPIPE never reaches the caller.
  Status send(std::span<const std::byte> bytes);

  /// Sends a header and its payload, together if that saves a packet.
  Status send(const HeaderBytes& header, std::span<const std::byte> payload);

  /// Fills `bytes`. Fails with kUnavailable if the stream ends first, even before the first byte.
  Status receive(std::span<std::byte> bytes);

  /// Limits each later wait for the peer; zero: no limit. A longer wait fails with kTimeout.
  Status set_timeout(std::chrono::milliseconds timeout);

  /// Changes the sending key. Does nothing without TLS. Fails with kUnavailable if the kernel
  /// encrypts and cannot change the key: a new connection has a new key.
  Status rekey();

  /// Whether kernel TLS encrypts and decrypts.
  bool kernel_seals() const { return kernel_seals_; }
  bool kernel_opens() const { return kernel_opens_; }

  /// Ends the connection in both directions and wakes waiting threads. Thread-safe, idempotent.
  void shut_down() const;

  /// Makes sure that the peer receives the last bytes: ends our direction, then discards incoming
  /// bytes until the peer ends too, for at most `limit`. (Closing a socket with unread bytes resets
  /// it, and the peer could lose the last bytes.)
  void linger(std::chrono::milliseconds limit);

  /// Converts the errno of a failed call on a connection's socket.
  static Error socket_error(int errno_value, std::string_view doing);
  static Error ended();

 private:
  Status protect(SSL* ssl, Side side);
  Status send_records(std::span<const std::byte> first, std::span<const std::byte> second);
  Status send_sealed();
  Status receive_records(std::span<std::byte> bytes);
  Status send_to_socket(std::span<const std::byte> bytes);

  UniqueFd socket_;
  bool usable_ = true;  ///< false between the beginning of a handshake and its success
  bool kernel_seals_ = false;
  bool kernel_opens_ = false;
  std::optional<Binding> binding_;  ///< under TLS
  std::optional<RecordSealer> sealer_;
  std::optional<RecordOpener> opener_;
};

}  // namespace gcr::transport

// One connection: a blocking socket, plain or under TLS 1.3. OpenSSL makes the handshake
// (handshake.cc); after it, the kernel encrypts and decrypts if it can, else records.h does. Either
// way bytes go from the caller's memory to the network, and from there into place, without another
// copy.
#pragma once

#include <openssl/ssl.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/records.h"

namespace gcr::transport {

/// What binds a connection under TLS to one transfer: a value that TLS exports from its handshake
/// (RFC 8446, 7.5; RFC 5705) with the transfer as its context. Only the two ends of that handshake
/// know it, and both get another one on every connection and for every transfer.
using Binding = std::array<unsigned char, 32>;

/// Whether `error` is an error of the network: another connection may succeed.
inline bool is_network(const Error& error) {
  return error.code() == Code::kUnavailable || error.code() == Code::kTimeout;
}

/// One thread may send while another receives; otherwise thread-safe only where said. Fails with
/// kUnavailable if the peer is gone.
class Stream {
 public:
  explicit Stream(UniqueFd socket) : socket_(std::move(socket)) {}

  enum class Side { kClient, kServer };

  /// Makes a TLS 1.3 handshake; everything after it is encrypted. The peer's certificate must be
  /// valid in `context`, and `verify_peer` must accept it; if not, the reason can still be sent.
  /// After any other failure nothing can be sent or received. `transfer` is what the connection is
  /// bound to.
  Status start_tls(SSL_CTX* context, Side side, const VerifyPeer& verify_peer,
                   const Uuid& transfer = {});

  /// What proves to the peer that this end knows `token`: under TLS a proof that is valid only for
  /// this connection and its transfer, else the token itself.
  std::string show(const std::string& token) const;

  /// Sends all of `bytes`. SIGPIPE never reaches the caller.
  Status send(std::span<const std::byte> bytes);

  /// Sends a header and its payload, together where that saves a packet.
  Status send(const HeaderBytes& header, std::span<const std::byte> payload);

  /// Fills `bytes`. An end of the stream, even at the start, is kUnavailable.
  Status receive(std::span<std::byte> bytes);

  /// Bounds each wait for the peer from now on; zero: no bound. A wait that is too long is
  /// kTimeout.
  Status set_timeout(std::chrono::milliseconds timeout);

  /// Changes the sending key. Does nothing without TLS. Fails with kUnavailable if the kernel
  /// encrypts and cannot change the key: a new connection has a new key.
  Status rekey();

  /// Whether the kernel encrypts and decrypts.
  bool kernel_seals() const { return kernel_seals_; }
  bool kernel_opens() const { return kernel_opens_; }

  /// Ends the connection in both directions and wakes waiting threads. Thread-safe, idempotent.
  void shut_down() const;

  /// Makes sure that the last bytes sent reach the peer: ends our direction, then discards what the
  /// peer still sends until it ends too, at most for `limit`. (Closing a socket with unread bytes
  /// would reset it, and the peer could lose what was sent.)
  void linger(std::chrono::milliseconds limit);

  /// The error of a call on a connection's socket that failed with `errno_value`.
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

// One connection: a blocking socket, plain or under TLS 1.3. OpenSSL makes the
// handshake; after it, the kernel protects what is sent and received where it
// can (kernel_tls.h), else records.h does: either way bytes go from the
// caller's memory to the network, and from there to where they belong, without
// another copy.
#pragma once

#include <openssl/ssl.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "transport/tcp/binding.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/records.h"

namespace gcr::transport {

/// Makes calls on the socket wait.
Status set_blocking(int fd);

/// Sets what every lane wants of its socket: no delay, and an end to a peer
/// that is silent for `peer_timeout`, whether data is under way
/// (TCP_USER_TIMEOUT) or not (keepalive).
Status tune_socket(int fd, std::chrono::milliseconds peer_timeout);

/// One thread may send while another receives; otherwise thread-safe only where
/// said. Fails with kUnavailable where the peer went away.
class Stream {
 public:
  explicit Stream(UniqueFd socket) : socket_(std::move(socket)) {}

  enum class Side { kClient, kServer };

  /// Puts TLS 1.3 on the socket; everything after it is encrypted. The peer's
  /// certificate must hold in `context`, and `verify_peer` must agree; where it
  /// does not, the reason can still be sent. After any other failure nothing
  /// can be sent or received.
  /// `transfer` is what the connection is bound to.
  Status start_tls(SSL_CTX* context, Side side, const VerifyPeer& verify_peer,
                   const Uuid& transfer = {});

  /// What shows the peer that this end knows `token`: under TLS a proof that
  /// holds for this connection and its transfer alone, else the token itself.
  std::string show(const std::string& token) const {
    return binding_ ? bound_token(token, *binding_) : token;
  }

  /// Sends all of `bytes`. SIGPIPE never reaches the caller.
  Status send(std::span<const std::byte> bytes);

  /// Sends a header and its payload, together where that saves a packet.
  Status send(const HeaderBytes& header, std::span<const std::byte> payload);

  /// Fills `bytes`. An end of the stream, even at the start, is kUnavailable.
  Status receive(std::span<std::byte> bytes);

  /// Bounds each wait for the peer from now on; zero: no bound. A wait that is
  /// too long is kTimeout.
  Status set_timeout(std::chrono::milliseconds timeout);

  /// Changes the sending key. Does nothing without TLS. Fails with kUnavailable
  /// where the kernel protects what is sent and cannot do so: a new connection
  /// has a new key.
  Status rekey();

  /// Whether the kernel protects what is sent and what is received.
  bool kernel_seals() const { return kernel_seals_; }
  bool kernel_opens() const { return kernel_opens_; }

  /// Ends the connection in both directions and wakes whoever waits in it.
  /// Thread-safe, idempotent.
  void shut_down() const;

  /// Lets a last word reach the peer: ends our direction, then discards what
  /// the peer still sends until it ends too, at most for `limit`. (Closing a
  /// socket with unread bytes would reset it, and the peer could lose what we
  /// said.)
  void linger(std::chrono::milliseconds limit);

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

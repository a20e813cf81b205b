// The TCP transport: N connections ("lanes"), frames read straight into the receiver's regions.
//
// Each connection carries the caller's preface in the clear, then (with TLS) a TLS 1.3 handshake in
// which both sides show certificates, then frames (frame.h). Sockets block; cancel() ends every
// call by shutting them down. A peer that does not answer for `peer_timeout` counts as gone.
//
// A lane outlives its connection: a lost connection is replaced within `reconnect_window`, and only
// frames that the receiver does not have are sent again. Meanwhile the other lanes continue.
#pragma once

#include <openssl/ssl.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "src/base/units.h"
#include "src/base/uuid.h"
#include "transport/address.h"
#include "transport/channel.h"
#include "transport/peer.h"

namespace gcr::transport {

/// Checks after the TLS handshake, which verified the peer's certificate, whether its role permits
/// this connection. Called on the thread of the handshake; an error refuses the peer.
using VerifyPeer = std::function<Status(SSL*)>;

struct TcpOptions {
  unsigned lanes = 1;           ///< number of connections, 1 to 64
  SSL_CTX* tls = nullptr;       ///< client context with own certificate; nullptr: plain TCP
  VerifyPeer verify_peer = {};  ///< required with `tls`; called until the channel is destroyed
  std::string token = {};       ///< admits each connection; at most kMaxTokenBytes
  Uuid transfer = {};           ///< under TLS, a token proof is valid for this transfer only
  std::vector<std::byte> preface = {};  ///< sent unencrypted, first on each connection
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(10);
  /// How long a lane that lost its connection may take to get another. 0: no reconnection.
  std::chrono::milliseconds reconnect_window = std::chrono::seconds(10);
  std::chrono::milliseconds peer_timeout = std::chrono::seconds(30);
  /// A lane changes its TLS key after this many bytes, well before AES-GCM's limit (RFC 8446, 5.5).
  std::uint64_t rekey_bytes = 64 * kGiB;
};

/// Connects all lanes and returns once the receiver has accepted each. Spreads the lanes over
/// `addresses` in turn, which all lead to one receiver; skips an address that does not answer if
/// another does, and adds a sentence about it to `notes` (may be nullptr). On failure nothing stays
/// open; the error has the receiver's reason. Blocks up to a few times `connect_timeout` for each
/// address. `options.tls` must outlive only the call. The channel's destructor ends the transfer if
/// the channel is intact; call flush() before.
Result<std::unique_ptr<Channel>> connect(const std::vector<Address>& addresses,
                                         const TcpOptions& options,
                                         std::vector<std::string>* notes = nullptr);

struct TcpReceiverOptions {
  SSL_CTX* tls = nullptr;       ///< server context with own certificate; nullptr: plain TCP
  VerifyPeer verify_peer = {};  ///< required with `tls`
  std::string token = {};       ///< each lane must prove it; at most kMaxTokenBytes
  Uuid transfer = {};           ///< must equal the sender's
  unsigned max_lanes = 64;      ///< a sender with more lanes is refused
  OnLanded on_landed = {};      ///< may be empty
  std::chrono::milliseconds handshake_timeout = std::chrono::seconds(10);
  std::chrono::milliseconds peer_timeout = std::chrono::seconds(30);
  /// How long a lane may be without a connection before the transfer breaks. 0: no reconnection.
  std::chrono::milliseconds reconnect_window = std::chrono::seconds(10);
};

/// Receives on connections that the caller accepted, from one sender: the first that proves the
/// token. One thread per connection. health() also fails, with kUnavailable, once a lane was
/// without a connection for too long. A sender that stalls in the middle of a frame delays
/// remove_region() until cancel().
class TcpReceiver : public Receiver {
 public:
  /// Adds a connected socket whose preface was read already, and returns at once: handshake and
  /// token check happen on the connection's own thread, which also sends the reason to a sender
  /// whose transfer is broken. A second connection for a lane shuts down the first, and replaces it
  /// when its last write has ended. Fails with kResourceExhausted, and closes the socket, if too
  /// many connections have not finished their handshake.
  virtual Status add_connection(UniqueFd socket) = 0;

  /// Number of lanes that have a connection now.
  virtual unsigned lanes() const = 0;
};

/// Creates a receiver. It refuses and logs a connection that fails its handshake or proves a wrong
/// token; that does not affect health() or the other lanes, because any host can open a connection.
/// `options.tls` must outlive the receiver. Do not destroy the receiver, nor call remove_region(),
/// from `on_landed`.
std::unique_ptr<TcpReceiver> receive_tcp(TcpReceiverOptions options);

}  // namespace gcr::transport

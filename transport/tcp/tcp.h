// The TCP transport: N connections ("lanes"), frames read straight into the receiver's regions.
//
// Each connection carries the caller's preface in the clear, then (with TLS) a TLS 1.3 handshake in
// which both sides show certificates, then frames (frame.h). Sockets block; cancel() ends every
// call by shutting them down. A peer that does not answer for `peer_timeout` counts as gone.
//
// A lane outlives its connection: a lost connection is made again within `reconnect_window`, and
// only what the receiver does not have yet is sent again. Meanwhile the other lanes go on.
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

/// Decides, after a handshake that proved the peer's certificate, whether that peer may take part
/// (its role). Called on the thread that made the handshake; an error refuses the peer.
using VerifyPeer = std::function<Status(SSL*)>;

struct TcpOptions {
  unsigned lanes = 1;           ///< connections to make, 1 to 64
  SSL_CTX* tls = nullptr;       ///< client context with own certificate; nullptr: plain TCP
  VerifyPeer verify_peer = {};  ///< required with `tls`; called until the channel is destroyed
  std::string token = {};       ///< shown to the receiver by each connection, to kMaxTokenBytes
  Uuid transfer = {};           ///< under TLS, tokens hold for connections of this transfer only
  std::vector<std::byte> preface = {};  ///< sent unencrypted, first on each connection
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(10);
  /// How long a lane that lost its connection may take to get another. 0: no reconnection.
  std::chrono::milliseconds reconnect_window = std::chrono::seconds(10);
  std::chrono::milliseconds peer_timeout = std::chrono::seconds(30);
  /// A lane changes its TLS key after this many bytes, well before AES-GCM's limit (RFC 8446, 5.5).
  std::uint64_t rekey_bytes = 64 * kGiB;
};

/// Connects with all lanes and returns once the receiver has accepted each. Lanes are spread over
/// `addresses` in turn, which all lead to one receiver; one that does not answer is left out if
/// another does, with a sentence about it in `notes` (may be nullptr). On failure nothing stays
/// open; the error has the receiver's reason. Blocks up to a few times `connect_timeout` for each
/// address. `options.tls` must outlive only the call. The channel's destructor ends the transfer if
/// the channel is intact; call flush first.
Result<std::unique_ptr<Channel>> connect(const std::vector<Address>& addresses,
                                         const TcpOptions& options,
                                         std::vector<std::string>* notes = nullptr);

struct TcpReceiverOptions {
  SSL_CTX* tls = nullptr;       ///< server context with own certificate; nullptr: plain TCP
  VerifyPeer verify_peer = {};  ///< required with `tls`
  std::string token = {};       ///< what each lane must prove, to kMaxTokenBytes
  Uuid transfer = {};           ///< as the sender's
  unsigned max_lanes = 64;      ///< a sender with more is refused
  OnLanded on_landed = {};      ///< may be empty
  std::chrono::milliseconds handshake_timeout = std::chrono::seconds(10);
  std::chrono::milliseconds peer_timeout = std::chrono::seconds(30);
  /// How long a lane may be without connection before the transfer is broken. 0: not at all.
  std::chrono::milliseconds reconnect_window = std::chrono::seconds(10);
};

/// Receives on connections that the caller accepted, from one sender: the first that proves the
/// token. One thread per connection. health() fails with kUnavailable, too, once a lane was without
/// connection for too long; a sender that stalls in the middle of a frame delays remove_region()
/// until cancel().
class TcpReceiver : public Receiver {
 public:
  /// Takes a connected socket whose preface was read already, and returns at once: handshake and
  /// token check happen on the connection's own thread, which also tells a sender whose transfer is
  /// broken why. A connection for a lane that has one ends that one, and replaces it when none
  /// of its writes is under way any more. Fails with kResourceExhausted if too many connections
  /// have not finished their handshake; the socket is closed then.
  virtual Status add_connection(UniqueFd socket) = 0;

  /// Lanes that have a connection now.
  virtual unsigned lanes() const = 0;
};

/// A connection that fails its handshake or shows a wrong token is refused and logged; it does not
/// affect health() or the other lanes, because anybody can make one. `options.tls` must outlive the
/// receiver. Do not destroy the receiver, nor call remove_region, from `on_landed`.
std::unique_ptr<TcpReceiver> receive_tcp(TcpReceiverOptions options);

}  // namespace gcr::transport

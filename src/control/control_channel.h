// The control channel: Envelopes over TLS 1.3 between an operator's command and an agent, and
// between two agents. Both ends show certificates. One coroutine reads and one writes at a time;
// the channel belongs to the thread that runs its executor.
//
// A connection starts with a Preface in clear: the daemon reads it, and nothing else, to decide
// which process gets the descriptor. What follows is TLS, with the client certificate of the
// connecting side.
//
// Local users reach their host's agent through a Unix socket instead: no preface, no TLS, and the
// kernel says who they are. The Envelopes are the same.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/ssl.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "src/control/identity.h"
#include "src/control/tls_files.h"
#include "src/control/wire.h"

namespace gcr::control {

/// A context for either side: TLS 1.3 only, peer certificate required, signed by `authority` and
/// not revoked. kInvalidArgument, naming the file, if one cannot be read or the key is not the
/// certificate's. Where `revoked` is set and is not the authority's, or has expired, no peer is
/// accepted.
Result<std::shared_ptr<asio::ssl::context>> make_tls_context(const TlsFiles& files);

/// What the certificate shown on `ssl` says, after a handshake. kPermissionDenied if there is none.
Result<PeerIdentity> peer_identity(SSL* ssl);

/// For data connections, after a handshake: the peer's certificate carries the agent role and,
/// unless `host` is empty, is made out to that host name or address. kPermissionDenied if not. Any
/// thread.
Status verify_agent(SSL* ssl, const std::string& host = {});

/// Who this side's own certificate says that it is. kInvalidArgument without one.
Result<PeerIdentity> own_identity(SSL_CTX* context);

class ControlChannel {
 public:
  using Milliseconds = std::chrono::milliseconds;

  /// Connects, sends the preface, does the TLS handshake (the server's certificate must carry the
  /// agent role and be made out to `endpoint.host`) and exchanges Hellos. Everything together takes
  /// at most `timeout`. kUnavailable or kTimeout if the agent cannot be reached, kPermissionDenied
  /// if a certificate is refused, kProtocol if the versions differ. `host` is what the Hello says
  /// of this side; empty: the machine's host name. To a local socket neither `preface` nor `tls` is
  /// used; only there may `tls` be null.
  static asio::awaitable<Result<std::unique_ptr<ControlChannel>>> connect(
      Endpoint endpoint, Preface preface, std::shared_ptr<asio::ssl::context> tls,
      Milliseconds timeout, std::string host = {});

  /// The server's half, on a connected socket whose preface was read already (a Unix socket has
  /// none). The peer's roles are for the caller to judge.
  static asio::awaitable<Result<std::unique_ptr<ControlChannel>>> accept(
      UniqueFd socket, std::shared_ptr<asio::ssl::context> tls, Milliseconds timeout,
      std::string host = {});

  ~ControlChannel();

  /// Sends one message. kUnavailable if the peer is gone, naming it; kTimeout if it takes nothing
  /// for 30 s. The channel is unusable after either.
  asio::awaitable<Status> send(const proto::Envelope& message);

  /// The next message. kTimeout after `timeout`, kProtocol if it cannot be parsed, is too long for
  /// who the peer is, or is one of too many (wire.h has the limits), kUnavailable if the peer is
  /// gone; the channel is unusable after each. Cancelling the coroutine leaves the channel usable
  /// only if nothing of a message had arrived.
  asio::awaitable<Result<proto::Envelope>> receive(Milliseconds timeout);

  /// The next message but Alive; as receive(), whose `timeout` begins anew with each Alive.
  asio::awaitable<Result<proto::Envelope>> receive_past_alive(Milliseconds timeout);

  /// Sends `request` and gives the next message but Alive, whatever it is (ask.h has
  /// check_reply()). It may take as long as the peer says within `silence` that it is alive.
  asio::awaitable<Result<proto::Envelope>> call(const proto::Envelope& request,
                                                Milliseconds silence);

  const PeerIdentity& peer() const;
  const proto::Hello& peer_hello() const;
  std::string peer_address() const;  ///< "10.0.0.2:7411"; "local" of a local user
  std::string local_host() const;    ///< "10.0.0.1", where the peer reached this end; or empty

  /// Whether both ends have the same address: such a connection does not leave the host.
  bool stays_on_host() const;

  /// Closes the connection at once; pending operations fail. Let them end before destroying this.
  void close();

  /// Says that nothing more will be sent, and waits until the peer has closed its side or `timeout`
  /// has passed, so that what was sent last arrives; then closes. Whatever still comes is dropped.
  asio::awaitable<void> finish(Milliseconds timeout);

 private:
  struct Impl;
  explicit ControlChannel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gcr::control

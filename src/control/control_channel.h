// The control channel: Envelopes over TLS 1.3 between an operator's command and an agent, and
// between two agents. Both ends show certificates. One coroutine reads and one writes at a time;
// the channel belongs to the thread that runs its executor.
//
// A connection starts with an unencrypted Preface. The daemon reads only that and decides which
// process gets the descriptor. TLS follows, with the client certificate of the connecting side.
//
// Local users reach their host's agent through a Unix socket instead: there is no preface and no
// TLS, and the kernel identifies the user. The Envelopes are the same.
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
#include "src/control/stream.h"
#include "src/control/tls_files.h"
#include "src/control/wire.h"

namespace gcr::control {

/// Creates a context for either side: TLS 1.3 only, peer certificate required, signed by
/// `authority` and not revoked. kInvalidArgument, naming the file, if one cannot be read or the key
/// does not belong to the certificate. If `revoked` is set and is from another authority or has
/// expired, no peer is accepted.
Result<std::shared_ptr<asio::ssl::context>> make_tls_context(const TlsFiles& files);

/// Returns the identity in the certificate shown on `ssl`, after a handshake. kPermissionDenied if
/// there is none.
Result<PeerIdentity> peer_identity(SSL* ssl);

/// Checks, for data connections after a handshake, that the peer's certificate carries the agent
/// role and, unless `host` is empty, is made out to that host name or address. kPermissionDenied if
/// not. Any thread.
Status verify_agent(SSL* ssl, const std::string& host = {});

/// Returns the identity in this side's own certificate. kInvalidArgument without one.
Result<PeerIdentity> own_identity(SSL_CTX* context);

class ControlChannel {
 public:
  using Milliseconds = std::chrono::milliseconds;

  /// Connects, sends the preface, does the TLS handshake (the server's certificate must carry the
  /// agent role and be made out to `endpoint.host`) and exchanges Hellos, in at most `timeout`.
  /// kUnavailable or kTimeout if the agent cannot be reached, kPermissionDenied if a certificate is
  /// refused, kProtocol if the versions differ. `host` is this side's name in the Hello; empty: the
  /// system's host name. A local socket uses neither `preface` nor `tls`; only there may `tls` be
  /// null.
  static asio::awaitable<Result<std::unique_ptr<ControlChannel>>> connect(
      Endpoint endpoint, Preface preface, std::shared_ptr<asio::ssl::context> tls,
      Milliseconds timeout, std::string host = {});

  /// Does the server's part on a connected socket whose preface was already read (a Unix socket has
  /// none). The caller checks the peer's roles.
  static asio::awaitable<Result<std::unique_ptr<ControlChannel>>> accept(
      UniqueFd socket, std::shared_ptr<asio::ssl::context> tls, Milliseconds timeout,
      std::string host = {});

  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  /// Sends one message. kUnavailable, naming the peer, if it is gone; kTimeout if it accepts no
  /// data for 30 s. The channel is unusable after either.
  asio::awaitable<Status> send(const proto::Envelope& message);

  /// Receives the next message. kTimeout after `timeout`; kProtocol if the message cannot be
  /// parsed, is too long for this kind of peer, or exceeds the rate (limits in wire.h);
  /// kUnavailable if the peer is gone. The channel is unusable after each of these. Cancelling the
  /// coroutine leaves the channel usable only if no part of a message had arrived.
  asio::awaitable<Result<proto::Envelope>> receive(Milliseconds timeout);

  /// Receives the next message other than Alive, like receive(); each Alive restarts `timeout`.
  asio::awaitable<Result<proto::Envelope>> receive_past_alive(Milliseconds timeout);

  /// Sends `request` and returns the next message other than Alive, of any kind (ask.h has
  /// check_reply()). There is no overall limit as long as an Alive arrives within each `silence`.
  asio::awaitable<Result<proto::Envelope>> call(const proto::Envelope& request,
                                                Milliseconds silence);

  const PeerIdentity& peer() const { return identity_; }
  const proto::Hello& peer_hello() const { return hello_; }
  /// "10.0.0.2:7411", or "local" for a local user.
  const std::string& peer_address() const { return address_; }
  /// This end's address, "10.0.0.1"; or empty.
  const std::string& local_host() const { return local_host_; }

  /// Returns whether both ends have the same address: such a connection does not leave the host.
  bool stays_on_host() const;

  /// Closes the connection at once; pending operations fail, and must have ended before this object
  /// is destroyed.
  void close() { stream_.close(); }

  /// Half-closes the connection and waits until the peer has closed its side or `timeout` has
  /// passed, so that the last message arrives; then closes. Data that still arrives is dropped.
  asio::awaitable<void> finish(Milliseconds timeout) { return stream_.drain(timeout); }

 private:
  ControlChannel(Stream::Socket socket, std::shared_ptr<asio::ssl::context> tls,
                 std::string peer_name);

  Error error_of(const std::error_code& error);
  Error timeout_error(std::string_view what, Milliseconds timeout) const;
  Error silence_error(Milliseconds timeout, std::size_t unacknowledged_bytes) const;
  bool admit_message();
  asio::awaitable<Status> write(const proto::Envelope& message);
  asio::awaitable<Result<proto::Envelope>> read();
  asio::awaitable<Status> exchange_hellos(std::string host);
  Status check_hello(const proto::Envelope& message);
  asio::awaitable<Status> start_client(const std::string& host);
  asio::awaitable<Status> start_server();
  Status trust_local_agent();
  Status recognise_local_user();
  asio::awaitable<void> refuse(const Error& error);

  Stream stream_;
  std::string peer_name_;  ///< "the agent at 10.0.0.2:7411"
  const std::string address_;
  const std::string local_host_;
  PeerIdentity identity_;
  proto::Hello hello_;
  std::size_t longest_message_ = kMaxHelloBytes;  ///< that the peer may send now
  std::chrono::steady_clock::time_point second_began_{};
  unsigned messages_ = 0;  ///< received in the second
};

}  // namespace gcr::control

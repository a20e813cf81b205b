// What a worker gives to the role or recovery that it runs. The worker owns all of it and outlives
// them.
#pragma once

#include <openssl/ssl.h>

#include <asio/io_context.hpp>
#include <asio/ssl/context.hpp>
#include <asio/thread_pool.hpp>
#include <memory>

#include "migrate-agent/config/config.h"
#include "migrate-agent/worker/authorisation.h"
#include "migrate-agent/worker/cancellation.h"
#include "migrate-agent/worker/daemon_client.h"
#include "migrate-agent/worker/offload.h"
#include "migrate-agent/worker/worker_server.h"
#include "src/control/control_channel.h"

namespace gcr::agent {

/// What a role works with. One thread runs `io`, and with it the roles' coroutines; blocking work
/// goes to the pool through offload().
struct WorkerContext {
  asio::io_context& io;
  asio::thread_pool& blocking;  ///< several threads
  const Config& config;
  control::ControlChannel&
      channel;  ///< to the operator (source) or to the source agent (destination)
  DaemonClient& daemon;
  std::shared_ptr<asio::ssl::context> tls;  ///< for every connection, opened or accepted
  Cancellation& cancellation;               ///< requested by others, or by the role itself
  WorkerServer& line;                       ///< to be opened once there is a journal
  Permissions permissions{};                ///< of the peer, if it is an operator or a local user

  /// The same as OpenSSL knows it, for the transport; pair it with control::verify_agent().
  SSL_CTX* data_ssl() const { return tls->native_handle(); }
};

/// What a recovery works with: as a role, but without a connection.
struct RecoveryContext {
  asio::io_context& io;
  asio::thread_pool& blocking;
  const Config& config;
  DaemonClient& daemon;
  std::shared_ptr<asio::ssl::context> tls;
  Cancellation& cancellation;
  WorkerServer& line;  ///< to be opened once the journal is owned
};

}  // namespace gcr::agent

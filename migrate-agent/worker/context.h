// What a worker has for what it runs: a role, or a recovery. The worker owns all of it and outlives
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

/// What a role works with. The worker owns all of it and outlives the role. One thread runs `io`,
/// and the roles' coroutines with it; whatever blocks goes through offload() to the pool.
struct WorkerContext {
  asio::io_context& io;
  asio::thread_pool& blocking;  ///< several threads
  const Config& config;
  control::ControlChannel&
      channel;  ///< to the operator (source) or to the source agent (destination)
  DaemonClient& daemon;
  std::shared_ptr<asio::ssl::context> tls;  ///< for every connection, opened or accepted
  Cancellation& cancellation;               ///< others request it; a role may as well
  WorkerServer& line;                       ///< to be opened as soon as there is a journal
  Permissions permissions{};                ///< of the peer, if it is an operator or a local user

  /// The same as OpenSSL knows it, for the transport; pair it with control::verify_agent().
  SSL_CTX* data_ssl() const { return tls->native_handle(); }
};

/// What recovery works with: as a role, but nobody is connected.
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

// What a worker gives to the role or recovery that it runs. The worker owns all of it and outlives
// them.
#pragma once

#include <openssl/ssl.h>

#include <asio/io_context.hpp>
#include <asio/ssl/context.hpp>
#include <asio/thread_pool.hpp>
#include <memory>
#include <optional>
#include <string>

#include "migrate-agent/worker/config/config.h"
#include "migrate-agent/worker/runtime/authorisation.h"
#include "migrate-agent/worker/runtime/cancellation.h"
#include "migrate-agent/worker/runtime/daemon_client.h"
#include "migrate-agent/worker/runtime/offload.h"
#include "migrate-agent/worker/runtime/worker_server.h"
#include "src/control/ask.h"
#include "src/control/control_channel.h"

namespace gcr::worker {

/// What a recovery works with, and a role too. One thread runs `io`, and with it the coroutines;
/// blocking work goes to the pool through offload().
struct RecoveryContext {
  asio::io_context& io;
  asio::thread_pool& blocking;  ///< several threads
  const Config& config;
  DaemonClient& daemon;
  std::shared_ptr<asio::ssl::context> tls;  ///< for every connection, opened or accepted
  Cancellation& cancellation;               ///< requested by others, or by the role itself
  WorkerServer& line;                       ///< to be opened once the journal is owned

  /// An agent to be asked, by its address; of any common name, or of this one alone.
  Result<control::AgentAddress> agent_at(const std::string& address,
                                         std::optional<std::string> name = {}) const {
    GCR_ASSIGN(auto endpoint, control::Endpoint::parse(address));
    return control::AgentAddress{std::move(endpoint), tls, std::move(name), config.host,
                                 config.peer_silence()};
  }

  /// The other agent of the migration whose journal begins so.
  Result<control::AgentAddress> other_agent(const journal::Began& began) const {
    return agent_at(began.peer(), began.peer_name());
  }
};

/// What a role works with.
struct WorkerContext : RecoveryContext {
  control::ControlChannel&
      channel;                ///< to the operator (source) or to the source agent (destination)
  Permissions permissions{};  ///< of the peer, if it is an operator or a local user

  /// The same as OpenSSL knows it, for the transport; pair it with control::verify_agent().
  SSL_CTX* data_ssl() const { return tls->native_handle(); }
};

}  // namespace gcr::worker

// The objects that a worker passes to the role or recovery that it runs. The worker owns all of
// them and outlives the role.
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

/// The context of a recovery or a role. One thread runs `io` and its coroutines; blocking work goes
/// to the pool through offload().
struct RecoveryContext {
  asio::io_context& io;
  asio::thread_pool& blocking;  ///< several threads
  const Config& config;
  DaemonClient& daemon;
  std::shared_ptr<asio::ssl::context> tls;  ///< for every connection, opened or accepted
  Cancellation& cancellation;  ///< requested by an operator, the peer or the role itself
  WorkerServer& line;          ///< opened once the journal is owned

  /// Returns the address of an agent for requests; if `name` is set, only an agent with that common
  /// name is accepted.
  Result<control::AgentAddress> agent_at(const std::string& address,
                                         std::optional<std::string> name = {}) const {
    GCR_ASSIGN(auto endpoint, control::Endpoint::parse(address));
    return control::AgentAddress{std::move(endpoint), tls, std::move(name), config.host,
                                 config.peer_silence()};
  }

  /// Returns the address of the other agent of a migration, from its Began.
  Result<control::AgentAddress> other_agent(const journal::Began& began) const {
    return agent_at(began.peer(), began.peer_name());
  }
};

/// The context of a role.
struct WorkerContext : RecoveryContext {
  control::ControlChannel&
      channel;                ///< to the operator (source) or to the source agent (destination)
  Permissions permissions{};  ///< of the peer, if it is an operator or a local user

  /// Returns `tls` as OpenSSL's type, for the transport; use it together with
  /// control::verify_agent().
  SSL_CTX* data_ssl() const { return tls->native_handle(); }
};

}  // namespace gcr::worker

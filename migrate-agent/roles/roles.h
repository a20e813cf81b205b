// The two roles of an agent in a migration. The worker has accepted the control channel, read its
// first request and checked that the peer's certificate allows it; the role does the rest and
// answers on the channel. When it returns, the worker ends and with it everything it holds.
#pragma once

#include <openssl/ssl.h>

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <asio/ssl/context.hpp>
#include <asio/thread_pool.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "migrate-agent/daemon/authorisation.h"
#include "migrate-agent/daemon/cancellation.h"
#include "migrate-agent/daemon/config.h"
#include "migrate-agent/daemon/daemon_client.h"
#include "migrate-agent/daemon/offload.h"
#include "migrate-agent/daemon/worker_server.h"
#include "proto/control.pb.h"
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

/// Moves the process away: sends Events and, last, one MigrateReport to the operator. Errors of the
/// migration end up in the report; an exception that leaves it is logged and sent as a Failure.
asio::awaitable<void> run_source(WorkerContext& context, proto::MigrateRequest request);

/// Receives the process: answers `request`, then the source's further requests, until the commit or
/// an abort, or until the source is gone.
asio::awaitable<void> run_destination(WorkerContext& context, proto::PreflightRequest request);

/// Preflight alone: a CheckReply with what both sides find. Nothing is touched, reserved or written
/// down. kPermissionDenied if the peer may not move the process, kInvalidArgument for a destination
/// that is no address: everything else is a finding.
asio::awaitable<Result<proto::Envelope>> run_check(WorkerContext& context,
                                                   proto::MigrateRequest request);

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

/// Does what is left of the migration of this journal, whoever was at it before: waits for the
/// journal's lock first. Success: nothing is left to do, now or ever. After a failure it is started
/// again, in a fresh process, for as long as the journal is unfinished.
asio::awaitable<Status> run_recovery(RecoveryContext& context, std::filesystem::path journal);

/// Why no migration could succeed on this host now, beyond its configuration: the driver does not
/// load, CRIU does not run. Blocks; a broken driver may take the process with it.
std::vector<std::string> host_problems(const Config& config);

}  // namespace gcr::agent

// Accepts connections, and passes each on to a worker.
#include <spdlog/spdlog.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <filesystem>

#include "migrate-agent/daemon/listener/daemon_impl.h"
#include "migrate-agent/worker/runtime/packet.h"

namespace gcr::daemon {
namespace {

using asio::ip::tcp;

constexpr std::chrono::milliseconds kAcceptPause = std::chrono::milliseconds(100);
/// Time for the preface of an excess connection. A client with a valid one sends it at once.
constexpr std::chrono::milliseconds kExcessPatience = std::chrono::seconds(1);

}  // namespace

asio::awaitable<void> Daemon::accept_all() {
  asio::steady_timer pause(io);
  while (acceptor.is_open()) {
    std::error_code error;
    tcp::endpoint remote;
    tcp::socket socket =
        co_await acceptor.async_accept(remote, asio::redirect_error(asio::use_awaitable, error));
    if (error == asio::error::operation_aborted) co_return;
    if (error) {
      spdlog::warn("cannot accept a connection: {}", error.message());
      pause.expires_after(kAcceptPause);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
      continue;
    }
    auto token = startups.admit(network_of(remote.address()));
    asio::co_spawn(io, admit(std::move(socket), remote.address().to_string(), std::move(token)),
                   asio::detached);
  }
}

Status Daemon::listen_locally() {
  if (config.local_socket.empty()) return {};
  GCR_ASSIGN(auto listening, LocalListener::listen(io, config.local_socket));
  local.emplace(std::move(listening));
  spdlog::info("listening for local users at {}", config.local_socket.string());
  asio::co_spawn(io, accept_local(), asio::detached);
  return {};
}

asio::awaitable<void> Daemon::accept_local() {
  const auto self = shared_from_this();
  asio::steady_timer pause(io);
  for (;;) {
    auto connection = co_await local->accept();
    if (!connection && connection.error().code() == Code::kCancelled) co_return;
    if (!connection) {
      spdlog::warn("{}", connection.error().message());
      pause.expires_after(kAcceptPause);
      co_await pause.async_wait(asio::use_awaitable);
      continue;
    }
    const std::string user = fmt::format("uid {}", connection->uid);
    Startups::Token token = local_startups.admit(user);
    if (token && !stopping) {
      start_worker(std::move(connection->socket), user, std::move(token));
    } else {
      spdlog::warn("closed a local connection of {}: {}", user,
                   stopping ? "this agent is stopping" : "too many have not sent a request");
    }
  }
}

/// Reads the preface of a connection and passes the connection on. Without a token, it is accepted
/// only if it belongs to a migration that this host knows.
asio::awaitable<void> Daemon::admit(tcp::socket socket, std::string address,
                                    Startups::Token token) {
  const auto self = shared_from_this();
  const std::chrono::milliseconds patience(config.startup_timeout_ms);
  const ExcessConnections::Entry waiting = token ? ExcessConnections::Entry() : excess.add(socket);
  const Result<control::Preface> preface =
      co_await read_preface(socket, token ? patience : std::min(patience, kExcessPatience));
  const bool is_data = preface && preface->kind == control::ConnectionKind::kData;
  if (preface && !token && !is_data) token = admit_known_migration(preface->migration);
  if (!token && !is_data) {
    monitoring.metrics().startup_refused();
    spdlog::warn("closed a connection from {}: too many have not shown a certificate", address);
    co_return;
  }
  if (!preface) {
    spdlog::info("closed a connection from {}: {}", address, preface.error().message());
    co_return;
  }
  Result<UniqueFd> connection = take_descriptor(std::move(socket));
  if (!connection) {
    spdlog::warn("closed a connection from {}: {}", address, connection.error().message());
    co_return;
  }
  if (is_data) {
    pass_data_connection(std::move(*connection), preface->migration, address);
  } else if (stopping) {
    spdlog::info("closed a control connection from {}: this agent is stopping", address);
  } else {
    start_worker(std::move(*connection), address, std::move(token));
  }
}

/// Migration ids are random, so only participants of the migration, or those who can read its
/// packets, can name it.
Startups::Token Daemon::admit_known_migration(const Uuid& migration) {
  std::error_code error;
  for (const journal::Role role : {journal::Began::SOURCE, journal::Began::DESTINATION}) {
    if (!std::filesystem::exists(journal::path_of(config.state_dir, migration, role), error)) {
      continue;
    }
    return known_startups.admit(migration.to_string());
  }
  return {};
}

void Daemon::pass_data_connection(UniqueFd connection, const Uuid& migration,
                                  const std::string& address) {
  const auto owner = registry.owner_of(migration);
  const auto found = owner ? workers.find(*owner) : workers.end();
  if (found == workers.end()) {
    spdlog::info("closed a data connection from {}: this host has no migration {}", address,
                 migration.to_string());
    return;
  }
  registry::FromDaemon message;
  message.mutable_data_connection();
  const Status sent = worker::send_packet(found->second.socket.native_handle(), message,
                                          connection.get(), worker::Wait::kNo);
  if (!sent) {
    spdlog::warn("closed a data connection from {} for worker {}: {}", address, found->second.pid,
                 sent.error().message());
  }
}

}  // namespace gcr::daemon

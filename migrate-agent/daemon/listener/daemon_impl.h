// The state of the daemon, shared by the sources that implement it. Internal to this folder.
#pragma once

#include <fmt/format.h>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/signal_set.hpp>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "migrate-agent/daemon/listener/admission.h"
#include "migrate-agent/daemon/listener/daemon.h"
#include "migrate-agent/daemon/listener/listening.h"
#include "migrate-agent/daemon/listener/monitoring.h"
#include "migrate-agent/daemon/listener/recoveries.h"
#include "migrate-agent/daemon/listener/registry.h"
#include "migrate-agent/daemon/listener/worker_process.h"
#include "proto/registry.pb.h"

namespace gcr::daemon {

/// The daemon. Its methods belong to the thread that runs `io`.
struct Daemon : std::enable_shared_from_this<Daemon> {
  /// A worker process. When it has been reaped, its entry is removed, and what it owned is released
  /// or passed to a recovery.
  struct Worker {
    Worker(asio::io_context& io, WorkerProcess process, Startups::Token startup)
        : pid(process.pid), socket(io, process.socket.release()), token(std::move(startup)) {}

    /// Returns the worker's name for the log, with its migration.
    std::string name() const {
      const std::string own = fmt::format("worker {}", pid);
      if (journals.empty()) return own;
      return fmt::format("migration={} {}", journals.front().migration.to_string(), own);
    }

    pid_t pid;
    asio::posix::stream_descriptor socket;
    Startups::Token token;  ///< while its peer has not shown a certificate
    Peers::Place place;     ///< once its peer has shown a certificate
    std::string phase;
    std::vector<journal::Entry>
        journals;            ///< of the migrations that it claimed or registered; not all exist
    std::string ordered_by;  ///< the operator who ordered its migration
  };

  Daemon(asio::io_context& context, worker::Config settings, std::vector<std::string> command)
      : io(context),
        config(std::move(settings)),
        worker_command(std::move(command)),
        recoveries(
            io, registry, [this] { return ++last_worker; },
            [this](WorkerId id, const std::string& name) { return start_recovery(id, name); },
            [this] { monitoring.metrics().journal_errors(1); }),
        monitoring(
            io, [this] { return spawn({"--probe"}); }, [this] { return present(); }) {}

  // connections.cc
  asio::awaitable<void> accept_all();
  Status listen_locally();
  asio::awaitable<void> accept_local();
  asio::awaitable<void> admit(asio::ip::tcp::socket socket, std::string address,
                              Startups::Token token);
  Startups::Token admit_known_migration(const Uuid& migration);
  void pass_data_connection(UniqueFd connection, const Uuid& migration, const std::string& address);

  // workers.cc
  Result<WorkerProcess> spawn(const std::vector<std::string>& more, UniqueFd connection = {}) const;
  void add_worker(WorkerId id, WorkerProcess process, Startups::Token token);
  void start_worker(UniqueFd connection, const std::string& address, Startups::Token token);
  bool start_recovery(WorkerId id, const std::string& name);
  asio::awaitable<void> reap_children();
  void reap(pid_t pid, int status);
  bool has_worker(const journal::Entry& entry) const;
  void remove_groups();

  asio::awaitable<void> read_messages(WorkerId id);
  void handle(WorkerId id, Worker& worker, const registry::FromWorker& message);
  Status answer(WorkerId id, Worker& worker, const registry::FromWorker& message);
  Status admit_peer(Worker& worker, const registry::Authenticated& peer);
  Status check_migration_limits(const Worker& worker, journal::Role role,
                                const std::string& ordered_by) const;
  Status claim(WorkerId id, Worker& worker, const registry::ClaimProcesses& wanted);
  Status take_suspended(WorkerId id, Worker& worker, const registry::TakeSuspended& wanted);
  Status register_migration(WorkerId id, Worker& worker, const registry::RegisterMigration& wanted);

  // daemon.cc
  asio::awaitable<void> handle_stop_signals();
  asio::awaitable<void> handle_reload_signals();
  Result<std::string> start();
  Status reload();
  Present present() const;
  void end_if_idle();

  asio::io_context& io;
  worker::Config config;
  std::vector<std::string> worker_command;
  asio::ip::tcp::acceptor acceptor{io};
  std::optional<LocalListener> local;
  asio::signal_set stop_signals{io};
  asio::signal_set child_signals{io};
  asio::signal_set reload_signals{io};
  Startups startups{config.max_startups};
  /// separate, so that local users and network clients do not displace each other
  Startups local_startups{config.max_startups};
  /// separate, for clients that name a migration of this host
  Startups known_startups{config.max_startups};
  ExcessConnections excess;
  Peers peers{config.max_connections};
  Registry registry;
  std::unordered_map<WorkerId, Worker> workers;
  WorkerId last_worker = 0;
  std::optional<pid_t> sweeper;  ///< removes groups without processes
  Recoveries recoveries;
  Monitoring monitoring;
  bool stopping = false;
};

}  // namespace gcr::daemon

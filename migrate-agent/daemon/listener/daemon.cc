#include "migrate-agent/daemon/listener/daemon.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/redirect_error.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "migrate-agent/daemon/listener/admission.h"
#include "migrate-agent/daemon/listener/listening.h"
#include "migrate-agent/daemon/listener/monitoring.h"
#include "migrate-agent/daemon/listener/recoveries.h"
#include "migrate-agent/daemon/listener/registry.h"
#include "migrate-agent/daemon/listener/worker_process.h"
#include "migrate-agent/linux/cgroups/group.h"
#include "migrate-agent/worker/config/certificates.h"
#include "migrate-agent/worker/runtime/daemon_client.h"
#include "migrate-agent/worker/runtime/packet.h"
#include "migrate-agent/worker/runtime/worker_server.h"
#include "proto/registry.pb.h"

namespace gcr::daemon {
namespace {

using asio::ip::tcp;

constexpr std::chrono::milliseconds kAcceptPause = std::chrono::milliseconds(100);
/// Time for the preface of an excess connection. A client with a valid one sends it at once.
constexpr std::chrono::milliseconds kExcessPatience = std::chrono::seconds(1);

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
  std::string peer;
  std::string phase;
  std::vector<journal::Entry>
      journals;            ///< of the migrations that it claimed or registered; not all exist
  std::string ordered_by;  ///< the operator who ordered its migration
};

/// Returns whether the worker leaves its processes suspended: they may be resumed before it has
/// ended.
bool is_suspended(const proto::MigrateReport& report) {
  return (report.suspended() && !report.committed()) ||
         (report.suspension().done() && !report.suspension().resumed());
}

/// Returns whether no work is left for the process here and it is not suspended. Its claim is then
/// released before the worker ends, since the operator may order the next migration at once.
bool is_settled(const proto::MigrateReport& report) {
  return !is_suspended(report) && !report.recovering() &&
         (report.migrated() || !report.committed());
}

std::string describe_exit(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("was killed by signal {} ({})", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
  }
  return fmt::format("ended with status {}", WEXITSTATUS(status));
}

}  // namespace

struct Daemon::Impl : std::enable_shared_from_this<Impl> {
  Impl(asio::io_context& context, worker::Config settings, std::vector<std::string> command,
       std::vector<std::string> arguments)
      : io(context),
        config(std::move(settings)),
        worker_command(std::move(command)),
        worker_arguments(std::move(arguments)),
        acceptor(io),
        stop_signals(io),
        child_signals(io),
        reload_signals(io),
        startups(config.max_startups),
        local_startups(config.max_startups),
        known_startups(config.max_startups),
        peers(config.max_connections),
        recoveries(
            io, registry, [this] { return ++last_worker; },
            [this](WorkerId id, const std::string& name) { return start_recovery(id, name); },
            [this] { monitoring.metrics().journal_errors(1); }),
        monitoring(
            io, [this] { return spawn({"--probe"}); }, [this] { return present(); }) {}

  asio::awaitable<void> accept_all();
  Status listen_locally();
  asio::awaitable<void> accept_local();
  asio::awaitable<void> admit(tcp::socket socket, std::string address, Startups::Token token);
  Startups::Token admit_known_migration(const Uuid& migration);
  Result<WorkerProcess> spawn(const std::vector<std::string>& more, UniqueFd connection = {}) const;
  void add_worker(WorkerId id, WorkerProcess process, Startups::Token token);
  void start_worker(UniqueFd connection, const std::string& address, Startups::Token token);
  bool start_recovery(WorkerId id, const std::string& name);
  bool has_worker(const journal::Entry& entry) const;
  void remove_groups();
  void pass_data_connection(UniqueFd connection, const Uuid& migration, const std::string& address);
  asio::awaitable<void> read_messages(WorkerId id);
  void handle(WorkerId id, Worker& worker, const registry::FromWorker& message);
  Status answer(WorkerId id, Worker& worker, const registry::FromWorker& message);
  Status admit_peer(Worker& worker, const registry::Authenticated& peer);
  Status check_migration_limits(const Worker& worker, journal::Role role,
                                const std::string& ordered_by) const;
  Status claim(WorkerId id, Worker& worker, const registry::ClaimProcesses& wanted);
  Status take_suspended(WorkerId id, Worker& worker, const registry::TakeSuspended& wanted);
  Status register_migration(WorkerId id, Worker& worker, const registry::RegisterMigration& wanted);
  asio::awaitable<void> reap_children();
  void reap(pid_t pid, int status);
  asio::awaitable<void> handle_stop_signals();
  asio::awaitable<void> handle_reload_signals();
  Status reload();
  Present present() const;
  void end_if_idle();

  asio::io_context& io;
  worker::Config config;
  std::vector<std::string> worker_command;
  std::vector<std::string> worker_arguments;
  tcp::acceptor acceptor;
  std::optional<LocalListener> local;
  asio::signal_set stop_signals;
  asio::signal_set child_signals;
  asio::signal_set reload_signals;
  Startups startups;
  Startups local_startups;  ///< separate, so that local users and network clients do not displace
                            ///< each other
  Startups known_startups;  ///< separate, for clients that name a migration of this host
  ExcessConnections excess;
  Peers peers;
  Registry registry;
  std::unordered_map<WorkerId, Worker> workers;
  WorkerId last_worker = 0;
  std::optional<pid_t> sweeper;  ///< removes groups without processes
  Recoveries recoveries;
  Monitoring monitoring;
  bool stopping = false;
};

asio::awaitable<void> Daemon::Impl::accept_all() {
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

Status Daemon::Impl::listen_locally() {
  if (config.local_socket.empty()) return {};
  GCR_ASSIGN(auto listening, LocalListener::listen(io, config.local_socket));
  local.emplace(std::move(listening));
  spdlog::info("listening for local users at {}", config.local_socket.string());
  asio::co_spawn(io, accept_local(), asio::detached);
  return {};
}

asio::awaitable<void> Daemon::Impl::accept_local() {
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
asio::awaitable<void> Daemon::Impl::admit(tcp::socket socket, std::string address,
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
Startups::Token Daemon::Impl::admit_known_migration(const Uuid& migration) {
  std::error_code error;
  for (const journal::Role role : {journal::Began::SOURCE, journal::Began::DESTINATION}) {
    if (!std::filesystem::exists(journal::path_of(config.state_dir, migration, role), error)) {
      continue;
    }
    return known_startups.admit(migration.to_string());
  }
  return {};
}

/// Starts this program again, as a worker with the additional arguments `more`.
Result<WorkerProcess> Daemon::Impl::spawn(const std::vector<std::string>& more,
                                          UniqueFd connection) const {
  std::vector<std::string> arguments = worker_arguments;
  arguments.insert(arguments.end(), more.begin(), more.end());
  return spawn_worker(worker_command, arguments, std::move(connection));
}

void Daemon::Impl::add_worker(WorkerId id, WorkerProcess process, Startups::Token token) {
  workers.try_emplace(id, io, std::move(process), std::move(token));
  asio::co_spawn(io, read_messages(id), asio::detached);
}

void Daemon::Impl::start_worker(UniqueFd connection, const std::string& address,
                                Startups::Token token) {
  auto process = spawn({}, std::move(connection));
  if (!process) {
    spdlog::error("closed a connection from {}: {}", address, process.error().message());
    return;
  }
  spdlog::info("worker {} serves {}", process->pid, address);
  add_worker(++last_worker, std::move(*process), std::move(token));
}

bool Daemon::Impl::start_recovery(WorkerId id, const std::string& name) {
  auto process = spawn({"--recover", name});
  if (!process) {
    spdlog::error("cannot recover {} now: {}", name, process.error().message());
    return false;
  }
  spdlog::info("worker {} recovers {}", process->pid, name);
  add_worker(id, std::move(*process), {});
  return true;
}

void Daemon::Impl::pass_data_connection(UniqueFd connection, const Uuid& migration,
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

asio::awaitable<void> Daemon::Impl::read_messages(WorkerId id) {
  const auto self = shared_from_this();
  for (auto found = workers.find(id); found != workers.end(); found = workers.find(id)) {
    asio::posix::stream_descriptor& socket = found->second.socket;
    std::error_code error;
    co_await socket.async_wait(asio::posix::stream_descriptor::wait_read,
                               asio::redirect_error(asio::use_awaitable, error));
    found = workers.find(id);
    if (error || found == workers.end()) co_return;
    const auto packet = worker::receive_packet(found->second.socket.native_handle());
    if (packet && !*packet) continue;
    if (!packet || (*packet)->bytes.empty()) {
      found->second.token.reset();
      co_return;
    }
    registry::FromWorker message;
    if (message.ParseFromString((*packet)->bytes)) handle(id, found->second, message);
  }
}

void Daemon::Impl::handle(WorkerId id, Worker& worker, const registry::FromWorker& message) {
  if (message.has_phase()) {
    worker.phase = message.phase().name();
    spdlog::info("{}: {}", worker.name(), worker.phase);
    end_if_idle();
  } else if (message.has_outcome()) {
    const proto::MigrateReport& report = message.outcome().report();
    monitoring.metrics().ended(message.outcome());
    if (is_settled(report)) registry.release_processes(id);
    if (is_suspended(report)) registry.mark_suspended(id);
    spdlog::info("{}: {}{}{}", worker.name(), outcome_word(message.outcome()),
                 report.message().empty() ? "" : ": ", report.message());
  } else {
    const Status granted = answer(id, worker, message);
    registry::FromDaemon reply;
    *reply.mutable_answer() = worker::to_answer(granted);
    reply.mutable_answer()->set_sequence(message.sequence());
    const Status sent =
        worker::send_packet(worker.socket.native_handle(), reply, -1, worker::Wait::kNo);
    if (!sent) spdlog::warn("cannot reply to {}: {}", worker.name(), sent.error().message());
  }
}

Status Daemon::Impl::admit_peer(Worker& worker, const registry::Authenticated& peer) {
  worker.peer = peer.peer();
  worker.token.reset();
  GCR_ASSIGN(worker.place, peers.admit(peer.peer(), peer.is_agent()));
  return {};
}

/// Checks whether this host may take part in one more migration in this role, in all and for the
/// operator.
Status Daemon::Impl::check_migration_limits(const Worker& worker, journal::Role role,
                                            const std::string& ordered_by) const {
  const auto has_part = [role](const Worker& one) {
    return std::ranges::find(one.journals, role, &journal::Entry::role) != one.journals.end();
  };
  if (has_part(worker)) return {};
  unsigned all = 0;
  unsigned of_one = 0;
  for (const auto& [id, one] : workers) {
    if (!has_part(one)) continue;
    ++all;
    if (one.ordered_by == ordered_by) ++of_one;
  }
  const auto full = [role](unsigned limit, const std::string& whose, const char* key) {
    return Error(
        Code::kResourceExhausted,
        fmt::format("this host is already the {} of {} migrations{}, the most that {} in its "
                    "agent.toml allows; try again when one has ended",
                    journal::to_string(role), limit, whose, key));
  };
  if (all >= config.max_migrations) return full(config.max_migrations, "", "max_migrations");
  const unsigned limit = config.migrations_of_one_user();
  if (of_one < limit) return {};
  return full(limit, fmt::format(" that \"{}\" ordered", control::printable(ordered_by)),
              "max_migrations_per_user");
}

/// Claims processes for a worker. Recoveries do not count towards the limits: they may wait for an
/// operator.
Status Daemon::Impl::claim(WorkerId id, Worker& worker, const registry::ClaimProcesses& wanted) {
  GCR_ASSIGN(const Uuid migration, journal::parse_id(wanted.migration_id()));
  const bool recovers = recoveries.contains(id);
  if (!recovers)
    GCR_TRY(check_migration_limits(worker, journal::Began::SOURCE, wanted.ordered_by()));
  GCR_TRY(registry.claim_processes(id, migration, wanted.processes()));
  if (recovers) return {};
  worker.ordered_by = wanted.ordered_by();
  worker.journals.push_back(journal::entry(config.state_dir, migration, journal::Began::SOURCE));
  return {};
}

Status Daemon::Impl::take_suspended(WorkerId id, Worker& worker,
                                    const registry::TakeSuspended& wanted) {
  GCR_ASSIGN(const Uuid migration, journal::parse_id(wanted.migration_id()));
  const auto entry = journal::entry(config.state_dir, migration, journal::Began::SOURCE);
  GCR_ASSIGN(const journal::ProcessIds processes, recoveries.take_suspended(entry));
  registry.take_over_suspended(id, migration);
  GCR_TRY(registry.claim_processes(id, migration, processes));
  worker.ordered_by = wanted.ordered_by();
  worker.journals.push_back(entry);
  return {};
}

Status Daemon::Impl::register_migration(WorkerId id, Worker& worker,
                                        const registry::RegisterMigration& wanted) {
  GCR_ASSIGN(const Uuid migration, journal::parse_id(wanted.migration_id()));
  GCR_TRY(check_migration_limits(worker, journal::Began::DESTINATION, wanted.ordered_by()));
  GCR_TRY(registry.register_migration(id, migration));
  worker.ordered_by = wanted.ordered_by();
  worker.journals.push_back(
      journal::entry(config.state_dir, migration, journal::Began::DESTINATION));
  return {};
}

Status Daemon::Impl::answer(WorkerId id, Worker& worker, const registry::FromWorker& message) {
  if (message.has_authenticated()) return admit_peer(worker, message.authenticated());
  if (message.has_claim_processes()) return claim(id, worker, message.claim_processes());
  if (message.has_take_suspended()) return take_suspended(id, worker, message.take_suspended());
  if (message.has_register_migration())
    return register_migration(id, worker, message.register_migration());
  if (message.has_ask_room()) {
    const registry::AskRoom& room = message.ask_room();
    GCR_TRY(registry.check_processes(id, room.processes()));
    return check_migration_limits(worker, room.role(), room.ordered_by());
  }
  return Error(Code::kUnsupported, "the daemon does not know this request");
}

asio::awaitable<void> Daemon::Impl::reap_children() {
  const auto self = shared_from_this();
  for (;;) {
    int status = 0;
    for (pid_t pid = ::waitpid(-1, &status, WNOHANG); pid > 0;
         pid = ::waitpid(-1, &status, WNOHANG)) {
      reap(pid, status);
    }
    std::error_code error;
    co_await child_signals.async_wait(asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;
  }
}

void Daemon::Impl::reap(pid_t pid, int status) {
  if (monitoring.process_ended(pid)) return;
  if (pid == sweeper) return sweeper.reset();
  const auto found =
      std::ranges::find_if(workers, [pid](const auto& entry) { return entry.second.pid == pid; });
  if (found == workers.end()) {
    spdlog::info("process {}, left by a worker, {}", pid, describe_exit(status));
    remove_groups();
    return;
  }
  const WorkerId id = found->first;
  const Worker& worker = found->second;
  const bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (WIFSIGNALED(status)) monitoring.metrics().worker_crashed();
  const std::string text = fmt::format("{} {}{}{}", worker.name(), describe_exit(status),
                                       worker.phase.empty() ? "" : "; last phase: ", worker.phase);
  spdlog::log(well ? spdlog::level::info : spdlog::level::err, "{}", text);
  const std::vector<journal::Entry> journals = worker.journals;
  workers.erase(found);
  if (recoveries.contains(id)) {
    recoveries.process_ended(id, well);
  } else {
    registry.release(id);
    for (const journal::Entry& entry : journals) {
      if (!has_worker(entry)) recoveries.add_after(entry, well);
    }
  }
  remove_groups();
  end_if_idle();
}

/// Returns whether a worker still has this journal: a job may be resumed before the worker that
/// suspended it has ended.
bool Daemon::Impl::has_worker(const journal::Entry& entry) const {
  return std::ranges::any_of(workers, [&](const auto& one) {
    return std::ranges::find(one.second.journals, entry.path, &journal::Entry::path) !=
           one.second.journals.end();
  });
}

/// Removes the groups of processes that arrived here and have ended or left. Not during a
/// migration: a process that is in another group meanwhile may return to its own. A separate
/// process removes them, because the daemon lacks the capability.
void Daemon::Impl::remove_groups() {
  if (!workers.empty() || !recoveries.empty() || sweeper) return;
  std::vector<std::string> arguments;
  for (const std::string& group : cgroups::empty_groups(cgroups::hierarchies())) {
    const std::string journal = group.substr(std::strlen(cgroups::kGroupPrefix));
    std::error_code error;
    const bool is_ours =
        std::filesystem::exists(journal::directory_of(config.state_dir) / journal, error);
    if (is_ours) arguments.insert(arguments.end(), {"--remove-group", group});
  }
  if (arguments.empty()) return;
  const auto process = spawn(arguments);
  if (process) sweeper = process->pid;
}

asio::awaitable<void> Daemon::Impl::handle_stop_signals() {
  const auto self = shared_from_this();
  std::error_code error;
  const int signal =
      co_await stop_signals.async_wait(asio::redirect_error(asio::use_awaitable, error));
  if (error) co_return;
  stopping = true;
  monitoring.stop();
  recoveries.stop();
  spdlog::info("stopping on signal {}; {} workers are still running", signal, workers.size());
  end_if_idle();
  co_await stop_signals.async_wait(asio::redirect_error(asio::use_awaitable, error));
  if (error) co_return;
  spdlog::warn("stopping now; {} workers continue without the daemon", workers.size());
  io.stop();
}

/// Checks the configuration and certificates that the next worker will read. The daemon itself
/// applies only the limits on migrations and the log level.
Status Daemon::Impl::reload() {
  GCR_ASSIGN(worker::Config fresh, worker::load_config(config.source));
  GCR_TRY(worker::check_own_certificate(fresh.tls, {}));
  spdlog::set_level(spdlog::level::from_str(fresh.log_level));
  config.tls = std::move(fresh.tls);
  config.max_migrations = fresh.max_migrations;
  config.max_migrations_per_user = fresh.max_migrations_per_user;
  return {};
}

asio::awaitable<void> Daemon::Impl::handle_reload_signals() {
  const auto self = shared_from_this();
  for (;;) {
    std::error_code error;
    co_await reload_signals.async_wait(asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;
    const Status good = reload();
    if (good) {
      spdlog::info("reloaded {} and the certificates; new connections use them",
                   config.source.string());
    } else {
      spdlog::error("reload failed; new connections will be refused until it is fixed: {}",
                    good.error().message());
    }
  }
}

/// Ends the daemon when all workers but those that wait for an operator have ended: these may wait
/// for days, and continue without a daemon.
void Daemon::Impl::end_if_idle() {
  if (!stopping) return;
  for (const auto& [id, worker] : workers) {
    if (worker.phase != worker::kPausedPhase) return;
  }
  for (const auto& [id, worker] : workers)
    spdlog::info("{} waits for an operator without the daemon", worker.name());
  io.stop();
}

Present Daemon::Impl::present() const {
  Present now;
  now.workers = workers.size();
  now.certificate_expiry = worker::certificate_expiry(config.tls);
  for (const auto& [id, worker] : workers) {
    if (recoveries.contains(id)) {
      ++now.recoveries;
      continue;
    }
    ++(worker.token ? now.unauthenticated : now.authenticated);
    if (worker.journals.empty()) continue;
    const bool outgoing = worker.journals.front().role == journal::Began::SOURCE;
    ++(outgoing ? now.outgoing : now.incoming);
  }
  return now;
}

Daemon::Daemon(asio::io_context& io, worker::Config config, std::vector<std::string> worker_command,
               std::vector<std::string> worker_arguments)
    : impl_(std::make_shared<Impl>(io, std::move(config), std::move(worker_command),
                                   std::move(worker_arguments))) {}

Daemon::~Daemon() = default;

Result<std::string> Daemon::start() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    return Error::from_errno(errno, "cannot become the reaper of orphaned descendants");
  }
  GCR_ASSIGN(std::string where, listen_on(impl_->acceptor, impl_->config.listen));
  std::error_code error;
  for (const int signal : {SIGTERM, SIGINT}) impl_->stop_signals.add(signal, error);
  if (!error) impl_->child_signals.add(SIGCHLD, error);
  if (!error) impl_->reload_signals.add(SIGHUP, error);
  if (error) return Error(Code::kIo, "cannot handle signals: " + error.message());
  asio::co_spawn(impl_->io, impl_->accept_all(), asio::detached);
  asio::co_spawn(impl_->io, impl_->reap_children(), asio::detached);
  asio::co_spawn(impl_->io, impl_->handle_stop_signals(), asio::detached);
  asio::co_spawn(impl_->io, impl_->handle_reload_signals(), asio::detached);
  GCR_TRY(impl_->listen_locally());
  if (impl_->config.metrics_listen) {
    GCR_TRY(impl_->monitoring.serve(*impl_->config.metrics_listen));
  }
  impl_->recoveries.begin(impl_->config.state_dir);
  // After the recoveries have begun: a worker that is just ending either still has its journal, and
  // a recovery waits for it and cleans up, or no longer has it.
  remove_dead_worker_sockets(impl_->config);
  impl_->remove_groups();
  return where;
}

}  // namespace gcr::daemon

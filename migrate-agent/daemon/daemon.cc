#include "migrate-agent/daemon/daemon.h"

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

#include "migrate-agent/daemon/connection.h"
#include "migrate-agent/daemon/migration_status.h"
#include "migrate-agent/daemon/packet.h"
#include "migrate-agent/daemon/recoveries.h"
#include "migrate-agent/daemon/registry.h"
#include "migrate-agent/daemon/startups.h"
#include "migrate-agent/daemon/worker_process.h"
#include "migrate-agent/daemon/worker_server.h"
#include "proto/registry.pb.h"

namespace gcr::agent {
namespace {

using asio::ip::tcp;

constexpr std::chrono::milliseconds kAcceptPause = std::chrono::milliseconds(100);

/// A worker as the daemon sees it. When its process has been reaped it is forgotten, and what it
/// owns is released or goes to a recovery.
struct Worker {
  Worker(asio::io_context& io, WorkerProcess process, std::optional<Startups::Token> startup)
      : pid(process.pid), socket(io, process.socket.release()), token(std::move(startup)) {}

  pid_t pid;
  asio::posix::stream_descriptor socket;
  std::optional<Startups::Token> token;  ///< while its peer has not shown a certificate
  std::string peer;
  std::string phase;
  std::string outcome;
  std::vector<journal::Entry> journals;  ///< of what it claimed or registered; not all exist
};

std::string ending_of(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("was killed by signal {} ({})", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
  }
  return fmt::format("ended with status {}", WEXITSTATUS(status));
}

}  // namespace

struct Daemon::Impl : std::enable_shared_from_this<Impl> {
  Impl(asio::io_context& context, Config settings, std::vector<std::string> command,
       std::vector<std::string> arguments)
      : io(context),
        config(std::move(settings)),
        worker_command(std::move(command)),
        worker_arguments(std::move(arguments)),
        acceptor(io),
        stop_signals(io),
        child_signals(io),
        startups(config.max_startups),
        recoveries(
            io, registry, [this] { return ++last_worker; },
            [this](WorkerId id, const std::string& name) { return start_recovery(id, name); }) {}

  asio::awaitable<void> accept_all();
  asio::awaitable<void> admit(tcp::socket socket, std::string address, Startups::Token token);
  void start_worker(UniqueFd connection, const std::string& address, Startups::Token token);
  bool start_recovery(WorkerId id, const std::string& name);
  void pass_data_connection(UniqueFd connection, const Uuid& migration, const std::string& address);
  asio::awaitable<void> listen_to(WorkerId id);
  void take(WorkerId id, Worker& worker, const registry::FromWorker& message);
  Status answer(WorkerId id, Worker& worker, const registry::FromWorker& message);
  asio::awaitable<void> reap_children();
  void reap(pid_t pid, int status);
  asio::awaitable<void> obey_signals();
  void end_if_idle();

  asio::io_context& io;
  Config config;
  std::vector<std::string> worker_command;
  std::vector<std::string> worker_arguments;
  tcp::acceptor acceptor;
  asio::signal_set stop_signals;
  asio::signal_set child_signals;
  Startups startups;
  Registry registry;
  std::unordered_map<WorkerId, Worker> workers;
  WorkerId last_worker = 0;
  Recoveries recoveries;
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
    std::string address = remote.address().to_string();
    std::optional<Startups::Token> token = startups.admit(address);
    if (!token) {
      spdlog::warn("closed a connection from {}: too many have not shown a certificate", address);
      continue;
    }
    asio::co_spawn(io, admit(std::move(socket), std::move(address), std::move(*token)),
                   asio::detached);
  }
}

asio::awaitable<void> Daemon::Impl::admit(tcp::socket socket, std::string address,
                                          Startups::Token token) {
  const auto self = shared_from_this();
  const Result<control::Preface> preface =
      co_await read_preface(socket, std::chrono::milliseconds(config.startup_timeout_ms));
  if (!preface) {
    spdlog::info("closed a connection from {}: {}", address, preface.error().message());
    co_return;
  }
  Result<UniqueFd> connection = take_descriptor(std::move(socket));
  if (!connection) {
    spdlog::warn("closed a connection from {}: {}", address, connection.error().message());
    co_return;
  }
  if (preface->kind == control::ConnectionKind::kData) {
    pass_data_connection(std::move(*connection), preface->migration, address);
  } else if (stopping) {
    spdlog::info("closed a control connection from {}: this agent is stopping", address);
  } else {
    start_worker(std::move(*connection), address, std::move(token));
  }
}

void Daemon::Impl::start_worker(UniqueFd connection, const std::string& address,
                                Startups::Token token) {
  auto process = spawn_worker(worker_command, worker_arguments, std::move(connection));
  if (!process) {
    spdlog::error("closed a connection from {}: {}", address, process.error().message());
    return;
  }
  spdlog::info("worker {} serves {}", process->pid, address);
  const WorkerId id = ++last_worker;
  workers.try_emplace(id, io, std::move(*process), std::move(token));
  asio::co_spawn(io, listen_to(id), asio::detached);
}

bool Daemon::Impl::start_recovery(WorkerId id, const std::string& name) {
  std::vector<std::string> arguments = worker_arguments;
  arguments.insert(arguments.end(), {"--recover", name});
  auto process = spawn_worker(worker_command, arguments, UniqueFd());
  if (!process) {
    spdlog::error("cannot recover {} now: {}", name, process.error().message());
    return false;
  }
  spdlog::info("worker {} recovers {}", process->pid, name);
  workers.try_emplace(id, io, std::move(*process), std::nullopt);
  asio::co_spawn(io, listen_to(id), asio::detached);
  return true;
}

void Daemon::Impl::pass_data_connection(UniqueFd connection, const Uuid& migration,
                                        const std::string& address) {
  const auto owner = registry.owner_of(migration);
  const auto found = owner ? workers.find(*owner) : workers.end();
  if (found == workers.end()) {
    spdlog::info("closed a data connection from {}: no migration {} is under way here", address,
                 migration.to_string());
    return;
  }
  registry::FromDaemon message;
  message.mutable_data_connection();
  const Status sent =
      send_packet(found->second.socket.native_handle(), message, connection.get(), Wait::kNo);
  if (!sent) {
    spdlog::warn("closed a data connection from {} for worker {}: {}", address, found->second.pid,
                 sent.error().message());
  }
}

asio::awaitable<void> Daemon::Impl::listen_to(WorkerId id) {
  const auto self = shared_from_this();
  for (auto found = workers.find(id); found != workers.end(); found = workers.find(id)) {
    asio::posix::stream_descriptor& socket = found->second.socket;
    std::error_code error;
    co_await socket.async_wait(asio::posix::stream_descriptor::wait_read,
                               asio::redirect_error(asio::use_awaitable, error));
    found = workers.find(id);
    if (error || found == workers.end()) co_return;
    const auto packet = receive_packet(found->second.socket.native_handle());
    if (packet && !*packet) continue;
    if (!packet || (*packet)->bytes.empty()) {
      found->second.token.reset();
      co_return;
    }
    registry::FromWorker message;
    if (message.ParseFromString((*packet)->bytes)) take(id, found->second, message);
  }
}

void Daemon::Impl::take(WorkerId id, Worker& worker, const registry::FromWorker& message) {
  if (message.has_authenticated()) {
    worker.peer = message.authenticated().peer();
    worker.token.reset();
  } else if (message.has_phase()) {
    worker.phase = message.phase().name();
    spdlog::info("worker {}: {}", worker.pid, worker.phase);
  } else if (message.has_outcome()) {
    worker.outcome = message.outcome().text();
    spdlog::info("worker {}: {}: {}", worker.pid,
                 message.outcome().migrated() ? "migrated" : "not migrated", worker.outcome);
  } else {
    const Status granted = answer(id, worker, message);
    registry::FromDaemon reply;
    reply.mutable_answer()->set_sequence(message.sequence());
    if (!granted) {
      reply.mutable_answer()->set_code(std::string(to_string(granted.error().code())));
      reply.mutable_answer()->set_message(granted.error().message());
    }
    const Status sent = send_packet(worker.socket.native_handle(), reply, -1, Wait::kNo);
    if (!sent) spdlog::warn("cannot answer worker {}: {}", worker.pid, sent.error().message());
  }
}

Status Daemon::Impl::answer(WorkerId id, Worker& worker, const registry::FromWorker& message) {
  if (message.has_claim_process()) {
    const auto& claim = message.claim_process();
    GCR_ASSIGN(const Uuid migration, parse_id(claim.migration_id()));
    GCR_TRY(registry.claim_process(id, migration, claim.pid(), claim.start_time()));
    worker.journals.push_back(journal_entry(config.state_dir, migration, journal::Began::SOURCE));
    return {};
  }
  if (message.has_register_migration()) {
    GCR_ASSIGN(const Uuid migration, parse_id(message.register_migration().migration_id()));
    GCR_TRY(registry.register_migration(id, migration));
    worker.journals.push_back(
        journal_entry(config.state_dir, migration, journal::Began::DESTINATION));
    return {};
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
  const auto found =
      std::ranges::find_if(workers, [pid](const auto& entry) { return entry.second.pid == pid; });
  if (found == workers.end()) {
    spdlog::info("process {}, left by a worker, {}", pid, ending_of(status));
    return;
  }
  const WorkerId id = found->first;
  const Worker& worker = found->second;
  const bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  const std::string text = fmt::format("worker {} {}{}{}", pid, ending_of(status),
                                       worker.phase.empty() ? "" : "; last phase: ", worker.phase);
  spdlog::log(well ? spdlog::level::info : spdlog::level::err, "{}", text);
  const std::vector<journal::Entry> journals = worker.journals;
  workers.erase(found);
  if (recoveries.contains(id)) {
    recoveries.process_ended(id, well);
  } else {
    registry.release(id);
    for (const journal::Entry& entry : journals) recoveries.add_after(entry, well);
  }
  end_if_idle();
}

asio::awaitable<void> Daemon::Impl::obey_signals() {
  const auto self = shared_from_this();
  std::error_code error;
  const int signal =
      co_await stop_signals.async_wait(asio::redirect_error(asio::use_awaitable, error));
  if (error) co_return;
  stopping = true;
  recoveries.stop();
  spdlog::info("stopping on signal {}; {} workers are still at work", signal, workers.size());
  end_if_idle();
  co_await stop_signals.async_wait(asio::redirect_error(asio::use_awaitable, error));
  if (error) co_return;
  spdlog::warn("stopping at once; {} workers finish on their own", workers.size());
  io.stop();
}

void Daemon::Impl::end_if_idle() {
  if (stopping && workers.empty()) io.stop();
}

Daemon::Daemon(asio::io_context& io, Config config, std::vector<std::string> worker_command,
               std::vector<std::string> worker_arguments)
    : impl_(std::make_shared<Impl>(io, std::move(config), std::move(worker_command),
                                   std::move(worker_arguments))) {}

Daemon::~Daemon() = default;

Result<std::string> Daemon::start() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    return Error::from_errno(errno, "cannot become the reaper of migrated processes' inits");
  }
  GCR_ASSIGN(std::string where, listen_on(impl_->acceptor, impl_->config.listen));
  std::error_code error;
  for (const int signal : {SIGTERM, SIGINT}) impl_->stop_signals.add(signal, error);
  if (!error) impl_->child_signals.add(SIGCHLD, error);
  if (error) return Error(Code::kIo, "cannot handle signals: " + error.message());
  asio::co_spawn(impl_->io, impl_->accept_all(), asio::detached);
  asio::co_spawn(impl_->io, impl_->reap_children(), asio::detached);
  asio::co_spawn(impl_->io, impl_->obey_signals(), asio::detached);
  remove_dead_worker_sockets(impl_->config);
  impl_->recoveries.begin(impl_->config.state_dir);
  return where;
}

}  // namespace gcr::agent

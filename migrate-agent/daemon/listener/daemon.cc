#include "migrate-agent/daemon/listener/daemon.h"

#include <spdlog/spdlog.h>
#include <sys/prctl.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <cerrno>
#include <csignal>

#include "migrate-agent/daemon/listener/daemon_impl.h"
#include "migrate-agent/worker/config/certificates.h"
#include "migrate-agent/worker/runtime/daemon_client.h"
#include "migrate-agent/worker/runtime/worker_server.h"

namespace gcr::daemon {

asio::awaitable<void> Daemon::handle_stop_signals() {
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
Status Daemon::reload() {
  GCR_ASSIGN(worker::Config fresh, worker::load_config(config.source));
  GCR_TRY(worker::check_own_certificate(fresh.tls, {}));
  spdlog::set_level(spdlog::level::from_str(fresh.log_level));
  config.tls = std::move(fresh.tls);
  config.max_migrations = fresh.max_migrations;
  config.max_migrations_per_user = fresh.max_migrations_per_user;
  return {};
}

asio::awaitable<void> Daemon::handle_reload_signals() {
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
void Daemon::end_if_idle() {
  if (!stopping) return;
  for (const auto& [id, worker] : workers) {
    if (worker.phase != worker::kPausedPhase) return;
  }
  for (const auto& [id, worker] : workers)
    spdlog::info("{} waits for an operator without the daemon", worker.name());
  io.stop();
}

Present Daemon::present() const {
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

Result<std::string> Daemon::start() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    return Error::from_errno(errno, "cannot become the reaper of orphaned descendants");
  }
  GCR_ASSIGN(std::string where, listen_on(acceptor, config.listen));
  std::error_code error;
  for (const int signal : {SIGTERM, SIGINT}) stop_signals.add(signal, error);
  if (!error) child_signals.add(SIGCHLD, error);
  if (!error) reload_signals.add(SIGHUP, error);
  if (error) return Error(Code::kIo, "cannot handle signals: " + error.message());
  asio::co_spawn(io, accept_all(), asio::detached);
  // This keeps the daemon until `io` is destroyed.
  asio::co_spawn(
      io, [self = shared_from_this()] { return self->reap_children(); }, asio::detached);
  asio::co_spawn(io, handle_stop_signals(), asio::detached);
  asio::co_spawn(io, handle_reload_signals(), asio::detached);
  GCR_TRY(listen_locally());
  if (config.metrics_listen) GCR_TRY(monitoring.serve(*config.metrics_listen));
  recoveries.begin(config.state_dir);
  // After the recoveries have begun: a worker that is just ending either still has its journal, and
  // a recovery waits for it and cleans up, or no longer has it.
  remove_dead_worker_sockets(config);
  remove_groups();
  return where;
}

Result<std::string> start_daemon(asio::io_context& io, worker::Config config,
                                 std::vector<std::string> worker_command) {
  return std::make_shared<Daemon>(io, std::move(config), std::move(worker_command))->start();
}

}  // namespace gcr::daemon

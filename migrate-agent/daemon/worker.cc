#include "migrate-agent/daemon/worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <asio/thread_pool.hpp>
#include <csignal>

#include "migrate-agent/roles/roles.h"

namespace gcr::agent {
namespace {

using control::ControlChannel;

constexpr std::chrono::milliseconds kFirstRequestTimeout = std::chrono::seconds(60);
constexpr std::chrono::milliseconds kFinishTimeout = std::chrono::seconds(2);
constexpr std::size_t kBlockingThreads = 8;

/// What a worker owns for its whole life.
struct Worker {
  Worker(asio::io_context& context, const Config& settings, UniqueFd daemon_socket)
      : io(context), config(settings), daemon(context, std::move(daemon_socket)) {}

  asio::io_context& io;
  const Config& config;
  DaemonClient daemon;
  asio::thread_pool blocking{kBlockingThreads};
};

Error not_allowed(const ControlChannel& channel, std::string_view role, std::string_view what) {
  return Error(Code::kPermissionDenied,
               fmt::format("the certificate of \"{}\" does not allow it to {}: it lacks the URI "
                           "gcr:role:{}",
                           channel.peer().common_name, what, role));
}

/// Whether the peer may ask for this at all.
Status check_request(const ControlChannel& channel, const proto::Envelope& request) {
  if (request.has_migrate_request()) {
    if (channel.peer().is_operator) return {};
    return not_allowed(channel, "operator", "ask for a migration");
  }
  if (request.has_preflight_request()) {
    if (channel.peer().is_agent) return {};
    return not_allowed(channel, "agent", "send a process");
  }
  return Error(Code::kProtocol, "a connection begins with a MigrateRequest or a PreflightRequest");
}

asio::awaitable<void> send_failure(ControlChannel& channel, const Error& error) {
  proto::Envelope message;
  *message.mutable_failure() = control::to_failure(error);
  const Status sent = co_await channel.send(message);
  if (!sent) spdlog::warn("cannot tell the peer: {}", sent.error().message());
}

asio::awaitable<void> run_role(WorkerContext& context, proto::Envelope request) {
  std::optional<Error> failure;
  try {
    if (request.has_migrate_request()) {
      co_await run_source(context, std::move(*request.mutable_migrate_request()));
    } else {
      co_await run_destination(context, std::move(*request.mutable_preflight_request()));
    }
  } catch (const std::exception& exception) {
    failure = Error(Code::kInternal, fmt::format("the agent failed: {}", exception.what()));
  }
  if (failure) {
    spdlog::error("{}", failure->message());
    co_await send_failure(context.channel, *failure);
  }
}

asio::awaitable<Status> serve_channel(Worker& worker, ControlChannel& channel,
                                      std::shared_ptr<asio::ssl::context> tls) {
  spdlog::info("serving \"{}\" ({}, {}) at {}", channel.peer().common_name,
               channel.peer_hello().host(), channel.peer_hello().software(),
               channel.peer_address());
  auto request = co_await channel.receive(kFirstRequestTimeout);
  if (!request) co_return request.error();
  const Status allowed = check_request(channel, *request);
  if (!allowed) {
    co_await send_failure(channel, allowed.error());
    co_await channel.finish(kFinishTimeout);
    co_return allowed.error();
  }
  WorkerContext context{worker.io, worker.blocking, worker.config,
                        channel,   worker.daemon,   std::move(tls)};
  co_await run_role(context, std::move(*request));
  co_await channel.finish(kFinishTimeout);
  co_return Status{};
}

asio::awaitable<Status> serve(Worker& worker, UniqueFd connection) {
  auto tls = control::make_tls_context(worker.config.tls);
  if (!tls) co_return tls.error();
  const std::chrono::milliseconds timeout(worker.config.startup_timeout_ms);
  auto channel =
      co_await ControlChannel::accept(std::move(connection), *tls, timeout, worker.config.host);
  if (!channel) co_return channel.error();
  const std::string peer = (*channel)->peer().common_name;
  const Status reported = worker.daemon.report_authenticated(peer);
  if (!reported) spdlog::warn("cannot tell the daemon: {}", reported.error().message());
  co_return co_await serve_channel(worker, **channel, *tls);
}

asio::awaitable<int> serve_to_the_end(Worker& worker, UniqueFd connection) {
  const Status served = co_await serve(worker, std::move(connection));
  if (!served) spdlog::warn("{}", served.error().message());
  co_return served ? 0 : 1;
}

/// Signals that must not end a migration halfway get handlers that do nothing: unlike ignored
/// signals, those are back to their defaults in the programs that the worker starts.
void outlive_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGPIPE, SIGTERM, SIGINT, SIGHUP}) sigaction(signal, &action, nullptr);
}

}  // namespace

int run_worker(const Config& config, UniqueFd connection, UniqueFd daemon) {
  for (const UniqueFd* fd : {&connection, &daemon}) {
    if (::fcntl(fd->get(), F_SETFD, FD_CLOEXEC) != 0) {
      spdlog::error("a worker is started by migrate-agent, not by hand");
      return 1;
    }
  }
  outlive_signals();
  int exit_status = 1;
  asio::io_context io(1);
  {
    Worker worker(io, config, std::move(daemon));
    bool done = false;
    const auto when_served = [&](std::exception_ptr exception, int status) {
      done = true;
      exit_status = exception ? 1 : status;
      if (exception) spdlog::error("the worker failed outside its role");
    };
    asio::co_spawn(io, serve_to_the_end(worker, std::move(connection)), when_served);
    while (!done) io.run_one();
    worker.blocking.join();
  }
  io.run();  // what was closed above ends here
  return exit_status;
}

}  // namespace gcr::agent

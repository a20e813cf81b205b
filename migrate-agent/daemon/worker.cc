#include "migrate-agent/daemon/worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/thread_pool.hpp>
#include <csignal>
#include <filesystem>

#include "migrate-agent/daemon/requests.h"
#include "migrate-agent/journal/journal_files.h"
#include "migrate-agent/landing/hugepage_claim.h"
#include "migrate-agent/roles/roles.h"

namespace gcr::agent {
namespace {

using control::ControlChannel;
using proto::Envelope;

constexpr std::chrono::milliseconds kFirstRequestTimeout = std::chrono::seconds(60);
constexpr std::chrono::milliseconds kFinishTimeout = std::chrono::seconds(2);
constexpr std::size_t kBlockingThreads = 8;

/// What a worker owns for its whole life.
struct Worker {
  Worker(asio::io_context& context, const Config& settings, UniqueFd daemon_socket)
      : io(context),
        config(settings),
        daemon(context, std::move(daemon_socket)),
        line(context, settings, cancellation, daemon) {}

  asio::io_context& io;
  const Config& config;
  DaemonClient daemon;
  Cancellation cancellation;
  WorkerServer line;
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
  switch (request.body_case()) {
    case Envelope::kMigrateRequest:
    case Envelope::kCancelRequest:
    case Envelope::kListRequest:
    case Envelope::kStatusRequest:
    case Envelope::kResolveRequest:
    case Envelope::kHostRequest:
      if (channel.peer().is_operator) return {};
      return not_allowed(channel, "operator", "ask for a migration or about one");
    case Envelope::kPreflightRequest:
    case Envelope::kOutcomeRequest:
    case Envelope::kCommitRequest:
      if (channel.peer().is_agent) return {};
      return not_allowed(channel, "agent", "send a process or settle what became of one");
    default:
      return Error(Code::kProtocol, "a connection does not begin with this message");
  }
}

/// A source may say that it is alive before it has anything to ask: it looks at its host first.
asio::awaitable<Result<Envelope>> first_request(ControlChannel& channel) {
  for (;;) {
    auto message = co_await channel.receive(kFirstRequestTimeout);
    if (!message || !message->has_alive()) co_return message;
  }
}

asio::awaitable<void> send_failure(ControlChannel& channel, const Error& error) {
  proto::Envelope message;
  *message.mutable_failure() = control::to_failure(error);
  const Status sent = co_await channel.send(message);
  if (!sent) spdlog::warn("cannot tell the peer: {}", sent.error().message());
}

/// Questions, each with one answer.
asio::awaitable<Reply> answer(WorkerContext& context, const Envelope& request) {
  switch (request.body_case()) {
    case Envelope::kCancelRequest:
      co_return co_await answer_cancel(context, request.cancel_request());
    case Envelope::kListRequest:
      co_return co_await answer_list(context, request.list_request());
    case Envelope::kStatusRequest:
      co_return co_await answer_status(context, request.status_request());
    case Envelope::kResolveRequest:
      co_return co_await answer_resolve(context, request.resolve_request());
    case Envelope::kHostRequest:
      co_return co_await answer_host(context);
    case Envelope::kOutcomeRequest:
      co_return co_await answer_outcome(context, request.outcome_request());
    default:
      co_return co_await answer_commit(context, request.commit_request());
  }
}

asio::awaitable<void> run_role(WorkerContext& context, Envelope request) {
  if (request.has_migrate_request()) {
    co_await run_source(context, std::move(*request.mutable_migrate_request()));
  } else if (request.has_preflight_request()) {
    co_await run_destination(context, std::move(*request.mutable_preflight_request()));
  } else {
    const Reply reply = co_await answer(context, request);
    if (!reply) co_return co_await send_failure(context.channel, reply.error());
    const Status sent = co_await context.channel.send(*reply);
    if (!sent) spdlog::warn("cannot answer the peer: {}", sent.error().message());
  }
}

asio::awaitable<void> run_guarded(WorkerContext& context, Envelope request) {
  std::optional<Error> failure;
  try {
    co_await run_role(context, std::move(request));
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
  auto request = co_await first_request(channel);
  if (!request) co_return request.error();
  const Status allowed = check_request(channel, *request);
  if (!allowed) {
    co_await send_failure(channel, allowed.error());
    co_await channel.finish(kFinishTimeout);
    co_return allowed.error();
  }
  WorkerContext context{worker.io,     worker.blocking, worker.config,       channel,
                        worker.daemon, std::move(tls),  worker.cancellation, worker.line};
  co_await run_guarded(context, std::move(*request));
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

/// What a dead worker left on this host, once its journal is finished.
void clear_leftovers(const Config& config, const journal::Entry& entry) {
  const char* direction = entry.role == journal::Began::SOURCE ? "outgoing" : "incoming";
  const auto scratch = config.runtime_dir / direction / entry.migration.to_string();
  std::error_code error;
  std::filesystem::remove_all(scratch, error);
  if (error) spdlog::warn("cannot remove {}: {}", scratch.string(), error.message());
  remove_worker_socket(config, {config.runtime_dir, entry.migration, entry.role});
}

/// Hugepages that a dead worker had added to the host's limit.
void give_back_hugepages() {
  const auto lock = landing::HugepageLock::take({});
  if (!lock) spdlog::warn("hugepages may not be given back: {}", lock.error().message());
}

asio::awaitable<Status> recover(Worker& worker, journal::Entry entry) {
  asio::post(worker.blocking, give_back_hugepages);
  auto tls = control::make_tls_context(worker.config.tls);
  GCR_CO_TRY(tls);
  RecoveryContext context{worker.io,       worker.blocking,     worker.config, worker.daemon,
                          std::move(*tls), worker.cancellation, worker.line};
  GCR_CO_TRY(co_await run_recovery(context, entry.path));
  co_return co_await offload(worker.blocking, [&]() -> Status {
    clear_leftovers(worker.config, entry);
    return {};
  });
}

/// Ends with the process's exit status.
asio::awaitable<int> to_the_end(asio::awaitable<Status> work) {
  const Status worked = co_await std::move(work);
  if (!worked) spdlog::warn("{}", worked.error().message());
  co_return worked ? 0 : 1;
}

/// Signals that must not end a migration halfway get handlers that do nothing: unlike ignored
/// signals, those are back to their defaults in the programs that the worker starts.
void outlive_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGPIPE, SIGTERM, SIGINT, SIGHUP}) sigaction(signal, &action, nullptr);
}

/// False if this is no descriptor that a daemon gave us.
bool keep_from_children(const UniqueFd& fd) {
  if (::fcntl(fd.get(), F_SETFD, FD_CLOEXEC) == 0) return true;
  spdlog::error("a worker is started by migrate-agent, not by hand");
  return false;
}

/// Runs `work` with a Worker around it; the process's exit status.
template <class Work>
int run_to_the_end(const Config& config, UniqueFd daemon, Work work) {
  outlive_signals();
  int exit_status = 1;
  asio::io_context io(1);
  {
    Worker worker(io, config, std::move(daemon));
    bool done = false;
    const auto when_done = [&](std::exception_ptr exception, int status) {
      done = true;
      exit_status = exception ? 1 : status;
      if (exception) spdlog::error("the worker failed outside its role");
    };
    asio::co_spawn(io, to_the_end(work(worker)), when_done);
    while (!done) io.run_one();
    worker.blocking.join();
  }
  io.run();  // what was closed above ends here
  return exit_status;
}

}  // namespace

int run_worker(const Config& config, UniqueFd connection, UniqueFd daemon) {
  if (!keep_from_children(connection) || !keep_from_children(daemon)) return 1;
  return run_to_the_end(config, std::move(daemon),
                        [&](Worker& worker) { return serve(worker, std::move(connection)); });
}

int run_recovery_worker(const Config& config, UniqueFd daemon, const std::string& name) {
  if (!keep_from_children(daemon)) return 1;
  const auto entry = journal::entry_of(journal::directory_of(config.state_dir) / name);
  if (!entry) {
    spdlog::error("\"{}\" is not the name of a journal", control::printable(name));
    return 1;
  }
  return run_to_the_end(config, std::move(daemon),
                        [&](Worker& worker) { return recover(worker, *entry); });
}

}  // namespace gcr::agent

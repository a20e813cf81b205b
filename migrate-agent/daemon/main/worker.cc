#include "migrate-agent/daemon/main/worker.h"

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

#include "migrate-agent/commit/journal/journal_files.h"
#include "migrate-agent/commit/states/outcome.h"
#include "migrate-agent/daemon/main/audit.h"
#include "migrate-agent/daemon/main/privileges.h"
#include "migrate-agent/daemon/queries/journals.h"
#include "migrate-agent/daemon/queries/requests.h"
#include "migrate-agent/linux/hostmem/hugepage_claim.h"
#include "migrate-agent/linux/hostmem/memory_reservation.h"
#include "migrate-agent/migration/entry.h"
#include "migrate-agent/worker/config/certificates.h"
#include "migrate-agent/worker/config/check.h"
#include "migrate-agent/worker/runtime/packet.h"
#include "src/base/descriptor_table.h"
#include "src/base/log.h"

namespace gcr::daemon {
namespace {

using control::ControlChannel;
using proto::Envelope;

constexpr std::chrono::milliseconds kFirstRequestTimeout = std::chrono::seconds(60);
constexpr std::chrono::milliseconds kFinishTimeout = std::chrono::seconds(2);
constexpr std::size_t kBlockingThreads = 8;
/// Several for each buffer, so that a job with 4,000 buffers does not wait for a larger descriptor
/// table during the downtime.
constexpr std::size_t kDescriptors = 16384;
/// As many as fit into a packet.
constexpr int kMaxProblems = 32;
constexpr std::size_t kMaxProblemBytes = 1024;

/// Objects that live as long as the worker.
struct Worker {
  Worker(asio::io_context& context, const worker::Config& settings, UniqueFd daemon_socket)
      : io(context),
        config(settings),
        daemon(context, std::move(daemon_socket)),
        line(context, settings, cancellation, daemon) {}

  asio::io_context& io;
  const worker::Config& config;
  worker::DaemonClient daemon;
  worker::Cancellation cancellation;
  worker::WorkerServer line;
  asio::thread_pool blocking{kBlockingThreads};
};

asio::awaitable<void> send_failure(ControlChannel& channel, const Error& error) {
  proto::Envelope message;
  *message.mutable_failure() = control::to_failure(error);
  const Status sent = co_await channel.send(message);
  if (!sent) spdlog::warn("cannot send the failure to the peer: {}", sent.error().message());
}

/// Sends the reason to the peer and closes.
asio::awaitable<Status> refuse(ControlChannel& channel, const Error& why) {
  co_await send_failure(channel, why);
  co_await channel.finish(kFinishTimeout);
  co_return why;
}

/// Returns the id of the migration that a request concerns; empty for other requests.
std::string subject_of(const Envelope& request) {
  const auto* body = Envelope::descriptor()->FindFieldByNumber(request.body_case());
  const auto& message = Envelope::GetReflection()->GetMessage(request, body);
  const auto* id = message.GetDescriptor()->FindFieldByName("migration_id");
  return id == nullptr ? "" : message.GetReflection()->GetString(message, id);
}

/// Answers requests of operators and local users about one migration.
Reply answer_about(worker::WorkerContext& context, const Uuid& migration, const Envelope& request) {
  GCR_TRY(check_permission(context, migration));
  switch (request.body_case()) {
    case Envelope::kCancelRequest:
      return answer_cancel(context, migration);
    case Envelope::kContinueRequest:
      return answer_continue(context, migration);
    case Envelope::kAdjustRequest:
      return answer_adjust(context, migration, request.adjust_request());
    case Envelope::kStatusRequest:
      return answer_status(context, migration);
    default:
      return answer_resolve(context, migration, request.resolve_request());
  }
}

Reply answer_check(worker::WorkerContext& context, const proto::MigrateRequest& request) {
  return migration::is_suspended(context, request.pid())
             ? migration::run_suspended_check(context, request)
             : migration::run_check(context, request);
}

/// Answers requests that have one reply each. Blocks.
Reply answer(worker::WorkerContext& context, const Envelope& request) {
  if (request.has_list_request()) return answer_list(context, request.list_request());
  if (request.has_host_request()) return answer_host(context);
  if (request.has_check_request()) {
    return answer_check(context, request.check_request().migrate());
  }
  GCR_ASSIGN(const Uuid migration, journal::parse_id(subject_of(request)));
  if (request.has_outcome_request()) {
    return answer_outcome(context, migration, request.outcome_request().of_vote());
  }
  if (request.has_commit_request()) return answer_commit(context, migration);
  return answer_about(context, migration, request);
}

asio::awaitable<void> run_migration(worker::WorkerContext& context, proto::MigrateRequest request) {
  const auto suspended = co_await worker::offload(context.blocking, [&]() -> Result<bool> {
    return migration::is_suspended(context, request.pid());
  });
  if (suspended && *suspended) {
    co_await migration::run_suspended_source(context, std::move(request));
  } else {
    co_await migration::run_source(context, std::move(request));
  }
}

asio::awaitable<void> run_role(worker::WorkerContext& context, Envelope request) {
  if (request.has_migrate_request()) {
    co_await run_migration(context, std::move(*request.mutable_migrate_request()));
  } else if (request.has_load_request()) {
    co_await migration::run_restore(context, std::move(*request.mutable_load_request()));
  } else if (request.has_suspend_request()) {
    co_await migration::run_suspend(context, request.suspend_request());
  } else if (request.has_resume_request()) {
    co_await migration::run_resume(context, request.resume_request());
  } else if (request.has_preflight_request()) {
    co_await migration::run_destination(context, std::move(*request.mutable_preflight_request()));
  } else {
    const Reply reply =
        co_await worker::offload(context.blocking, [&] { return answer(context, request); });
    if (!reply) co_return co_await send_failure(context.channel, reply.error());
    const Status sent = co_await context.channel.send(*reply);
    if (!sent) spdlog::warn("cannot send the reply to the peer: {}", sent.error().message());
  }
}

asio::awaitable<void> run_guarded(worker::WorkerContext& context, Envelope request) {
  std::optional<Error> failure;
  try {
    co_await run_role(context, std::move(request));
  } catch (const std::exception& exception) {
    failure =
        Error(Code::kInternal, fmt::format("internal error in the agent: {}", exception.what()));
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
  auto request = co_await channel.receive_past_alive(kFirstRequestTimeout);
  if (!request) co_return request.error();
  const Status allowed = worker::may_ask(channel.peer(), request->body_case());
  if (!allowed) co_return co_await refuse(channel, allowed.error());
  if (request->has_preflight_request()) {
    const auto self = control::own_identity(tls->native_handle());
    if (!self) co_return co_await refuse(channel, self.error());
    const Status accepted = worker::check_peer(worker.config.peers, self->common_name,
                                               channel.peer().common_name, "migrations");
    if (!accepted) co_return co_await refuse(channel, accepted.error());
  }
  worker::WorkerContext context{{worker.io, worker.blocking, worker.config, worker.daemon,
                                 std::move(tls), worker.cancellation, worker.line},
                                channel};
  context.permissions = worker::Permissions::of(channel.peer(), worker.config.operators);
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
  const Status admitted = co_await worker.daemon.admit((*channel)->peer());
  if (!admitted && admitted.error().code() == Code::kResourceExhausted) {
    co_return co_await refuse(**channel, admitted.error());
  }
  // Requests are answered even without a daemon.
  if (!admitted)
    spdlog::warn("cannot report the peer to the daemon: {}", admitted.error().message());
  co_return co_await serve_channel(worker, **channel, *tls);
}

/// Removes the files that a dead worker left on this host, once its journal is finished.
void clear_leftovers(const worker::Config& config, const journal::Entry& entry) {
  const auto scratch = config.scratch_of(entry.migration);
  std::error_code error;
  std::filesystem::remove_all(scratch, error);
  if (error) spdlog::warn("cannot remove {}: {}", scratch.string(), error.message());
  remove_worker_socket(config, {config.runtime_dir, entry.migration, entry.role});
}

/// Reclaims hugepages that a dead worker had added to the host's limit, and memory that it had
/// reserved.
void reclaim_memory(const worker::Config& config) {
  const auto lock = hostmem::HugepageLock::take({});
  if (!lock) spdlog::warn("cannot reclaim hugepages of dead workers: {}", lock.error().message());
  const auto reserved = hostmem::reserved_memory(hostmem::reservations_in(config.runtime_dir));
  if (!reserved)
    spdlog::warn("cannot release memory reserved by dead workers: {}", reserved.error().message());
}

/// Returns the outcome of a recovery for the daemon; none while the job is suspended or if the
/// journal is damaged or cannot be read.
std::optional<registry::Outcome> recovery_outcome(const journal::Entry& entry) {
  const auto contents = journal::read(entry.path);
  if (!contents || contents->damage || journal::suspended(contents->records)) return std::nullopt;
  registry::Outcome outcome;
  outcome.set_recovered(true);
  outcome.set_left(registry::Outcome::NOTHING);
  *outcome.mutable_migration() = contents->records.front().began();
  *outcome.mutable_report() = commit::report_of(contents->records);
  return outcome;
}

asio::awaitable<Status> recover(Worker& worker, journal::Entry entry) {
  asio::post(worker.blocking, [&worker] { reclaim_memory(worker.config); });
  auto tls = control::make_tls_context(worker.config.tls);
  GCR_CO_TRY(tls);
  worker::RecoveryContext context{worker.io,     worker.blocking, worker.config,
                                  worker.daemon, std::move(*tls), worker.cancellation,
                                  worker.line};
  log_migration(entry.migration);
  GCR_CO_TRY(co_await migration::run_recovery(context, entry.path));
  std::optional<registry::Outcome> ending;
  const Status cleared = co_await worker::offload(worker.blocking, [&]() -> Status {
    ending = recovery_outcome(entry);
    clear_leftovers(worker.config, entry);
    return {};
  });
  if (ending) worker.daemon.report_outcome(*std::move(ending));
  co_return cleared;
}

/// Waits for `work`, writes the audit line, and returns the process's exit status.
asio::awaitable<int> finish_process(const Worker& worker, asio::awaitable<Status> work) {
  const Status worked = co_await std::move(work);
  if (!worked) spdlog::warn("{}", worked.error().message());
  if (worker.daemon.outcome()) {
    audit(worker.config, *worker.daemon.outcome());
    const auto pruned = journal::prune(worker.config.state_dir);
    if (!pruned) spdlog::warn("cannot remove old journals: {}", pruned.error().message());
  }
  co_return worked ? 0 : 1;
}

/// Handles signals that must not end a migration halfway with functions that do nothing. Unlike
/// ignored signals, these are reset to their defaults in the programs that the worker starts.
void outlive_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGPIPE, SIGTERM, SIGINT, SIGHUP}) sigaction(signal, &action, nullptr);
}

/// Returns false if the descriptor is not open: then no daemon started this process.
bool set_close_on_exec(const UniqueFd& fd) {
  if (::fcntl(fd.get(), F_SETFD, FD_CLOEXEC) == 0) return true;
  spdlog::error("a worker is started by migrate-agent, not by hand");
  return false;
}

bool drop_worker_privileges() {
  const Status dropped = drop_privileges(Part::kWorker);
  if (!dropped) spdlog::error("{}", dropped.error().message());
  return dropped.has_value();
}

/// Runs `work` with a Worker and returns the process's exit status.
template <class Work>
int run_process(const worker::Config& config, UniqueFd daemon, Work work) {
  outlive_signals();
  make_room_for_descriptors(daemon.get(), kDescriptors);
  int exit_status = 1;
  asio::io_context io(1);
  {
    Worker worker(io, config, std::move(daemon));
    bool done = false;
    const auto when_done = [&](const std::exception_ptr& exception, int status) {
      done = true;
      exit_status = exception ? 1 : status;
      if (exception) spdlog::error("internal error: unexpected exception in the worker");
    };
    asio::co_spawn(io, finish_process(worker, work(worker)), when_done);
    while (!done) io.run_one();  // NOLINT(bugprone-infinite-loop): when_done ends it
    worker.blocking.join();
  }
  io.run();  // completes the operations that were cancelled above
  return exit_status;
}

}  // namespace

int run_worker(const worker::Config& config, UniqueFd connection, UniqueFd daemon) {
  if (!set_close_on_exec(connection) || !set_close_on_exec(daemon)) return 1;
  if (!drop_worker_privileges()) return 1;
  return run_process(config, std::move(daemon),
                     [&](Worker& worker) { return serve(worker, std::move(connection)); });
}

int run_recovery_worker(const worker::Config& config, UniqueFd daemon, const std::string& name) {
  if (!set_close_on_exec(daemon) || !drop_worker_privileges()) return 1;
  const auto entry = journal::entry_of(journal::directory_of(config.state_dir) / name);
  if (!entry) {
    spdlog::error("\"{}\" is not the name of a journal", control::printable(name));
    return 1;
  }
  return run_process(config, std::move(daemon),
                     [&](Worker& worker) { return recover(worker, *entry); });
}

int run_probe(const worker::Config& config, UniqueFd daemon) {
  if (!set_close_on_exec(daemon)) return 1;
  registry::FromWorker message;
  registry::Readiness& readiness = *message.mutable_readiness();
  for (auto find : {worker::problems_of, migration::host_problems}) {
    for (std::string& problem : find(config)) {
      if (readiness.problems_size() == kMaxProblems) break;
      readiness.add_problems(problem.substr(0, kMaxProblemBytes));
    }
  }
  return worker::send_packet(daemon.get(), message, -1, worker::Wait::kYes) ? 0 : 1;
}

}  // namespace gcr::daemon

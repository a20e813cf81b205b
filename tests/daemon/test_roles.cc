// Roles for tests of the daemon: the destination of a MigrateRequest is the command for its worker.
// Recovery follows the protocol, without a process.
#include <unistd.h>

#include <asio/experimental/channel.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <csignal>
#include <fstream>
#include <stdexcept>

#include "migrate-agent/commit/states/commit_log.h"
#include "migrate-agent/migration/entry.h"
#include "tests/daemon/journals.h"

namespace gcr::migration {
namespace {

constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(60);

asio::awaitable<void> send_event(control::ControlChannel& channel, const char* phase,
                                 std::string text) {
  proto::Envelope message;
  message.mutable_event()->set_phase(phase);
  message.mutable_event()->set_text(std::move(text));
  const Status sent = co_await channel.send(message);
  if (!sent) throw std::runtime_error(sent.error().message());
}

/// A child that outlives this process.
pid_t leave_child_behind() {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  return child;
}

std::string read_to_end(int fd) {
  std::string text;
  char buffer[256];
  for (ssize_t count = 0; (count = ::read(fd, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  return text;
}

journal::ProcessIds process(pid_t pid, std::uint64_t start_time) {
  journal::ProcessIds list;
  list.Add()->set_pid(pid);
  list[0].set_start_time(start_time);
  return list;
}

/// A migration with a journal and a control socket, until it is cancelled.
asio::awaitable<void> keep_journal(worker::WorkerContext& context,
                                   const proto::MigrateRequest& request) {
  const Uuid migration = Uuid::random();
  const Status claimed = co_await context.daemon.claim_processes(
      migration, process(request.pid(), request.lanes()), "test");
  if (!claimed) throw std::runtime_error(claimed.error().message());
  journal::Began began;
  *began.mutable_members() = process(request.pid(), request.lanes());
  auto log = commit::SourceLog::create(context.config.state_dir, migration, began);
  const Status open = context.line.open(migration, journal::Began::SOURCE);
  if (!log || !open) throw std::runtime_error("no journal");
  context.daemon.report_phase("keeping");
  std::filesystem::create_directories(context.config.runtime_dir / "outgoing" /
                                      migration.to_string());
  proto::Envelope started;
  started.mutable_started()->set_migration_id(to_bytes(migration));
  const Status told = co_await context.channel.send(started);
  if (!told) throw std::runtime_error(told.error().message());
  co_await send_event(context.channel, "pid", std::to_string(::getpid()));
  asio::steady_timer cancelled(context.io, asio::steady_timer::time_point::max());
  const auto wake = context.cancellation.on_request([&] { cancelled.cancel(); });
  std::error_code woken;
  if (!context.cancellation.requested()) {
    co_await cancelled.async_wait(asio::redirect_error(asio::use_awaitable, woken));
  }
  const Error why = context.cancellation.check().error();
  daemon::test::must(log->advance(commit::SourceEvent::kFailed, daemon::test::aborted(why)));
  daemon::test::must(
      log->advance(commit::SourceEvent::kRolledBack, daemon::test::finished("by its worker")));
  proto::Envelope report;
  report.mutable_migrate_report()->set_code(std::string(to_string(why.code())));
  report.mutable_migrate_report()->set_message(why.message());
  const Status reported = co_await context.channel.send(report);
  if (!reported) throw std::runtime_error(reported.error().message());
}

/// The command "fail N": the first N recoveries of this journal fail.
Status fail_if_ordered(const worker::Config& config, const journal::Began& began) {
  unsigned failures = 0;
  if (std::sscanf(began.command().c_str(), "fail %u", &failures) != 1) return {};
  const auto path = config.state_dir / "attempts";
  std::error_code none_yet;
  const auto attempts = std::filesystem::file_size(path, none_yet);
  std::ofstream(path, std::ios::app) << 'x';
  if (!none_yet && attempts >= failures) return {};
  return Error(Code::kInternal, "recovery fails as it was asked to");
}

asio::awaitable<Status> recover_source(worker::RecoveryContext& context, commit::SourceLog log) {
  using enum commit::SourceEvent;
  GCR_CO_TRY(context.line.open(log.journal().migration(), journal::Began::SOURCE));
  if (log.state() != commit::SourceState::kCommitted) {
    const Error cause(Code::kInternal, "the worker died");
    GCR_CO_TRY(log.advance(kRestarted, daemon::test::aborted(cause)));
    co_return log.advance(kRolledBack, daemon::test::finished("by recovery"));
  }
  context.line.set_operator_needed(true);
  worker::Decision decision = co_await context.line.next_decision();
  GCR_CO_TRY(log.advance(decision.run_here ? kResolvedRunHere : kResolvedDiscardHere,
                         daemon::test::resolved(decision.run_here, decision.by)));
  const Status done = decision.run_here
                          ? log.advance(kRolledBack, daemon::test::finished("runs here"))
                          : log.advance(kCleared, daemon::test::finished("discarded here"));
  decision.answer(done);
  co_return done;
}

asio::awaitable<Status> recover_destination(worker::RecoveryContext& context,
                                            commit::DestinationLog log) {
  using enum commit::DestinationEvent;
  GCR_CO_TRY(context.line.open(log.journal().migration(), journal::Began::DESTINATION));
  context.daemon.report_phase("in doubt");
  worker::Decision decision = co_await context.line.next_decision();
  const Status claimed = co_await context.daemon.claim_processes(
      log.journal().migration(), process(daemon::test::kRestoredPid, 1), "");
  if (!claimed) decision.answer(claimed);
  GCR_CO_TRY(claimed);
  if (decision.by_source) {
    GCR_CO_TRY(log.advance(kToldCommit, daemon::test::committed()));
  } else {
    GCR_CO_TRY(log.advance(decision.run_here ? kResolvedRunHere : kResolvedDiscardHere,
                           daemon::test::resolved(decision.run_here, decision.by)));
  }
  const Status done =
      decision.run_here
          ? log.advance(kResumed, daemon::test::finished("runs here", daemon::test::kRestoredPid))
          : log.advance(kCleared, daemon::test::finished("discarded here"));
  decision.answer(done);
  co_return done;
}

}  // namespace

asio::awaitable<Status> run_recovery(worker::RecoveryContext& context, std::filesystem::path path) {
  using journal::Lock;
  const auto entry = journal::entry_of(path);
  if (entry && entry->role == journal::Began::SOURCE) {
    auto log = co_await worker::offload(context.blocking,
                                        [&] { return commit::SourceLog::open(path, Lock::kWait); });
    GCR_CO_TRY(log);
    if (!journal::unfinished(log->journal().records())) co_return Status();
    GCR_CO_TRY(fail_if_ordered(context.config, log->journal().began()));
    if (journal::suspended(log->journal().records())) co_return Status();
    co_return co_await recover_source(context, std::move(*log));
  }
  auto log = co_await worker::offload(
      context.blocking, [&] { return commit::DestinationLog::open(path, Lock::kWait); });
  GCR_CO_TRY(log);
  if (!journal::unfinished(log->journal().records())) co_return Status();
  co_return co_await recover_destination(context, std::move(*log));
}

asio::awaitable<void> run_restore(worker::WorkerContext& context, proto::LoadRequest request) {
  co_await send_event(context.channel, "load", request.directory());
}

asio::awaitable<void> run_source(worker::WorkerContext& context, proto::MigrateRequest request) {
  const std::string& wish = request.destination();
  if (wish == "crash") ::raise(SIGKILL);
  if (wish == "throw") throw std::runtime_error("thrown by the role");
  if (wish == "leave-child") {
    co_await send_event(context.channel, "child", std::to_string(leave_child_behind()));
    co_return;
  }
  if (wish == "journal") co_return co_await keep_journal(context, request);
  if (wish == "claim") {
    const Status claimed = co_await context.daemon.claim_processes(
        Uuid::random(), process(request.pid(), request.lanes()),
        context.channel.peer().common_name);
    const char* phase = claimed ? "claimed" : "refused";
    std::string text = claimed ? std::string() : claimed.error().message();
    co_await send_event(context.channel, phase, std::move(text));
  } else {
    co_await send_event(context.channel, "pid", std::to_string(::getpid()));
  }
  const auto released = co_await context.channel.receive(kPatience);
  registry::Outcome outcome;
  outcome.set_left(registry::Outcome::NOTHING);
  outcome.mutable_report()->set_message(released ? "released" : "left");
  context.daemon.report_outcome(std::move(outcome));
}

/// Suspends nothing.
asio::awaitable<void> run_suspend(worker::WorkerContext& context,
                                  const proto::SuspendRequest& request) {
  co_await send_event(context.channel, "suspend", std::to_string(request.pid()));
}

/// Takes over the only journal, and owns it until it is told to end.
asio::awaitable<void> run_resume(worker::WorkerContext& context, const proto::ResumeRequest&) {
  const auto entries = journal::list(context.config.state_dir);
  const Status taken = co_await context.daemon.take_suspended(entries->front().migration,
                                                              context.channel.peer().common_name);
  std::string why = taken ? std::string() : taken.error().message();
  co_await send_event(context.channel, taken ? "taken" : "refused", std::move(why));
  const auto released = co_await context.channel.receive(kPatience);
  if (!released) throw std::runtime_error(released.error().message());
}

/// Those that the file PROBLEMS in the state directory lists, one per line; it never ends with
/// "hang".
std::vector<std::string> host_problems(const worker::Config& config) {
  std::vector<std::string> problems;
  std::ifstream file(config.state_dir / "PROBLEMS");
  for (std::string line; std::getline(file, line);) {
    while (line == "hang") ::pause();
    problems.push_back(line);
  }
  return problems;
}

/// Replies with the process's number.
Result<proto::Envelope> run_check(worker::WorkerContext&, const proto::MigrateRequest& request) {
  proto::Envelope envelope;
  envelope.mutable_check_reply()->add_members()->set_pid_in_namespace(request.pid());
  return envelope;
}

/// Nothing is suspended: the next two are never called.
bool is_suspended(const worker::WorkerContext&, pid_t) { return false; }

asio::awaitable<void> run_suspended_source(worker::WorkerContext& context,
                                           proto::MigrateRequest request) {
  co_await migration::run_source(context, std::move(request));
}

Result<proto::Envelope> run_suspended_check(worker::WorkerContext& context,
                                            const proto::MigrateRequest& request) {
  return migration::run_check(context, request);
}

asio::awaitable<void> run_destination(worker::WorkerContext& context,
                                      proto::PreflightRequest request) {
  Uuid migration;
  std::copy_n(request.migration_id().begin(), migration.bytes.size(), migration.bytes.begin());
  asio::experimental::channel<void(std::error_code, UniqueFd)> connections(context.io, 1);
  context.daemon.on_data_connection(
      [&](UniqueFd socket) { connections.try_send(std::error_code(), std::move(socket)); });
  const Status registered =
      co_await context.daemon.register_migration(migration, request.ordered_by());
  const char* phase = registered ? "registered" : "refused";
  std::string why = registered ? std::string() : registered.error().message();
  co_await send_event(context.channel, phase, std::move(why));
  if (!registered) co_return;
  const UniqueFd connection = co_await connections.async_receive(asio::use_awaitable);
  context.daemon.on_data_connection(nullptr);
  const int fd = connection.get();
  Result<std::string> text = co_await worker::offload(
      context.blocking, [fd]() -> Result<std::string> { return read_to_end(fd); });
  co_await send_event(context.channel, "data", std::move(*text));
}

}  // namespace gcr::migration

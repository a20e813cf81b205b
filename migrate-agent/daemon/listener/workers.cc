// Starts worker processes, reaps them, and handles their messages: claims, phases and outcomes of
// migrations.
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <cstring>
#include <filesystem>

#include "migrate-agent/daemon/listener/daemon_impl.h"
#include "migrate-agent/linux/cgroups/group.h"
#include "migrate-agent/worker/runtime/packet.h"

namespace gcr::daemon {
namespace {

std::string describe_exit(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("was killed by signal {} ({})", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
  }
  return fmt::format("ended with status {}", WEXITSTATUS(status));
}

}  // namespace

/// Starts this program again, as a worker with the additional arguments `more`.
Result<WorkerProcess> Daemon::spawn(const std::vector<std::string>& more,
                                    UniqueFd connection) const {
  std::vector<std::string> command = worker_command;
  command.insert(command.end(), more.begin(), more.end());
  return spawn_worker(command, std::move(connection));
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): the worker takes the token over
void Daemon::add_worker(WorkerId id, WorkerProcess process, Startups::Token token) {
  workers.try_emplace(id, io, std::move(process), std::move(token));
  asio::co_spawn(io, read_messages(id), asio::detached);
}

void Daemon::start_worker(UniqueFd connection, const std::string& address, Startups::Token token) {
  auto process = spawn({}, std::move(connection));
  if (!process) {
    spdlog::error("closed a connection from {}: {}", address, process.error().message());
    return;
  }
  spdlog::info("worker {} serves {}", process->pid, address);
  add_worker(++last_worker, std::move(*process), std::move(token));
}

bool Daemon::start_recovery(WorkerId id, const std::string& name) {
  auto process = spawn({"--recover", name});
  if (!process) {
    spdlog::error("cannot recover {} now: {}", name, process.error().message());
    return false;
  }
  spdlog::info("worker {} recovers {}", process->pid, name);
  add_worker(id, std::move(*process), {});
  return true;
}

asio::awaitable<void> Daemon::reap_children() {
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

void Daemon::reap(pid_t pid, int status) {
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
bool Daemon::has_worker(const journal::Entry& entry) const {
  return std::ranges::any_of(workers, [&](const auto& one) {
    return std::ranges::find(one.second.journals, entry.path, &journal::Entry::path) !=
           one.second.journals.end();
  });
}

/// Removes the groups of processes that arrived here and have ended or left. Not during a
/// migration: a process that is in another group meanwhile may return to its own. A separate
/// process removes them, because the daemon lacks the capability.
void Daemon::remove_groups() {
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

asio::awaitable<void> Daemon::read_messages(WorkerId id) {
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

void Daemon::handle(WorkerId id, Worker& worker, const registry::FromWorker& message) {
  if (message.has_phase()) {
    worker.phase = message.phase().name();
    spdlog::info("{}: {}", worker.name(), worker.phase);
    end_if_idle();
  } else if (message.has_outcome()) {
    const proto::MigrateReport& report = message.outcome().report();
    monitoring.metrics().ended(message.outcome());
    // Before the worker ends, since the operator may order the next migration at once.
    const auto left = message.outcome().left();
    if (left == registry::Outcome::NOTHING) registry.release_processes(id);
    if (left == registry::Outcome::SUSPENDED) registry.mark_suspended(id);
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

Status Daemon::answer(WorkerId id, Worker& worker, const registry::FromWorker& message) {
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

Status Daemon::admit_peer(Worker& worker, const registry::Authenticated& peer) {
  worker.token.reset();
  GCR_ASSIGN(worker.place, peers.admit(peer.peer(), peer.is_agent()));
  return {};
}

/// Checks whether this host may take part in one more migration in this role, in all and for the
/// operator.
Status Daemon::check_migration_limits(const Worker& worker, journal::Role role,
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
Status Daemon::claim(WorkerId id, Worker& worker, const registry::ClaimProcesses& wanted) {
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

Status Daemon::take_suspended(WorkerId id, Worker& worker, const registry::TakeSuspended& wanted) {
  GCR_ASSIGN(const Uuid migration, journal::parse_id(wanted.migration_id()));
  const auto entry = journal::entry(config.state_dir, migration, journal::Began::SOURCE);
  GCR_ASSIGN(const journal::ProcessIds processes, recoveries.take_suspended(entry));
  registry.take_over_suspended(id, migration);
  GCR_TRY(registry.claim_processes(id, migration, processes));
  worker.ordered_by = wanted.ordered_by();
  worker.journals.push_back(entry);
  return {};
}

Status Daemon::register_migration(WorkerId id, Worker& worker,
                                  const registry::RegisterMigration& wanted) {
  GCR_ASSIGN(const Uuid migration, journal::parse_id(wanted.migration_id()));
  GCR_TRY(check_migration_limits(worker, journal::Began::DESTINATION, wanted.ordered_by()));
  GCR_TRY(registry.register_migration(id, migration));
  worker.ordered_by = wanted.ordered_by();
  worker.journals.push_back(
      journal::entry(config.state_dir, migration, journal::Began::DESTINATION));
  return {};
}

}  // namespace gcr::daemon

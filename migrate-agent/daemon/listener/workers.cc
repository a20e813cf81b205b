// Starts worker processes and reaps them.
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <cstring>
#include <filesystem>

#include "migrate-agent/daemon/listener/daemon_impl.h"
#include "migrate-agent/linux/cgroups/group.h"

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
  std::vector<std::string> arguments = worker_arguments;
  arguments.insert(arguments.end(), more.begin(), more.end());
  return spawn_worker(worker_command, arguments, std::move(connection));
}

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

}  // namespace gcr::daemon

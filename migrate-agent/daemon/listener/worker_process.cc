#include "migrate-agent/daemon/listener/worker_process.h"

#include <fcntl.h>
#include <spawn.h>

#include <cerrno>
#include <csignal>
#include <fstream>

#include "src/base/socket_pair.h"

namespace gcr::daemon {
namespace {

/// Above the descriptor numbers of a worker, so that moving one cannot overwrite the other.
constexpr int kFirstSafeFd = 16;

Result<UniqueFd> move_above_worker_fds(UniqueFd fd) {
  UniqueFd moved(::fcntl(fd.get(), F_DUPFD_CLOEXEC, kFirstSafeFd));
  if (!moved) return Error::from_errno(errno, "cannot duplicate a descriptor for a worker");
  return moved;
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// The two objects of posix_spawn, released together.
struct SpawnPlan {
  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};

  SpawnPlan() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;
};

/// Fills `plan`. `connection` is -1 if the worker gets none. No other open descriptors are
/// inherited, above all not the listening socket.
int prepare(SpawnPlan& plan, int connection, int daemon) {
  sigset_t none;
  sigemptyset(&none);
  const int placed =
      connection < 0
          ? posix_spawn_file_actions_addclose(&plan.actions, kWorkerConnectionFd)
          : posix_spawn_file_actions_adddup2(&plan.actions, connection, kWorkerConnectionFd);
  if (placed != 0) return placed;
  if (int error = posix_spawn_file_actions_adddup2(&plan.actions, daemon, kWorkerDaemonFd)) {
    return error;
  }
  if (int error = posix_spawn_file_actions_addclosefrom_np(&plan.actions, kWorkerDaemonFd + 1)) {
    return error;
  }
  if (int error = posix_spawnattr_setsigmask(&plan.attributes, &none)) return error;
  return posix_spawnattr_setflags(&plan.attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
}

}  // namespace

Result<std::vector<std::string>> self_command(int own_arguments) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  const auto own = static_cast<std::size_t>(own_arguments);
  if (words.size() <= own) {
    return Error(Code::kIo, "cannot read this program's command line from /proc/self/cmdline");
  }
  words.resize(words.size() - own);
  return words;
}

Result<WorkerProcess> spawn_worker(const std::vector<std::string>& command, UniqueFd connection) {
  GCR_ASSIGN(SocketPair pair, SocketPair::create("a worker"));
  WorkerProcess worker;
  worker.socket = std::move(pair.ours);
  GCR_ASSIGN(const UniqueFd daemon_end, move_above_worker_fds(std::move(pair.theirs)));
  UniqueFd connection_end;
  if (connection) {
    GCR_ASSIGN(connection_end, move_above_worker_fds(std::move(connection)));
  }
  SpawnPlan plan;
  int error = prepare(plan, connection_end.get(), daemon_end.get());
  if (error == 0) {
    error = posix_spawn(&worker.pid, "/proc/self/exe", &plan.actions, &plan.attributes,
                        pointers_to(command).data(), environ);
  }
  if (error != 0) return Error::from_errno(error, "cannot start a worker");
  return worker;
}

}  // namespace gcr::daemon

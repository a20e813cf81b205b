#include "migrate-agent/base/fault/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

#include "src/base/log.h"

namespace gcr::fault {
namespace {

/// The action of an armed point; `argument` is the rest of its line.
struct Action {
  std::string verb;
  std::string argument;
};

const char* faults_file() {
  static const char* const path = std::getenv("GCR_FAULTS");
  return path;
}

/// Removes and returns the first word of `line`.
std::string next_word(std::string& line) {
  const std::size_t end = line.find(' ');
  std::string word = line.substr(0, end);
  line.erase(0, end == std::string::npos ? end : end + 1);
  return word;
}

/// Returns the action of `name` in the file, if it is armed there.
std::optional<Action> look_up(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (next_word(line) != name) continue;
    Action action;
    action.verb = next_word(line);
    action.argument = line;
    return action;
  }
  return std::nullopt;
}

/// Renames the file to FILE.hit, so that its points act once; false if another process was first.
bool claim(const std::string& path) {
  const std::string claimed = fmt::format("{}.{}", path, ::gettid());
  if (::rename(path.c_str(), claimed.c_str()) != 0) return false;
  std::ofstream(claimed, std::ios::app) << "hit " << ::getpid() << std::endl;
  ::rename(claimed.c_str(), (path + ".hit").c_str());
  return true;
}

std::optional<Action> take(std::string_view name) {
  const char* const path = faults_file();
  if (path == nullptr || ::access(path, F_OK) != 0) return std::nullopt;
  std::optional<Action> action = look_up(path, name);
  if (!action || !claim(path)) return std::nullopt;
  spdlog::warn("fault point {}: {} {}", name, action->verb, action->argument);
  return action;
}

/// Runs `sh -c command` and waits for it. The child inherits only the environment and standard
/// streams.
Status run(const std::string& command) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  sigset_t none;
  sigemptyset(&none);
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const char* const words[] = {"sh", "-c", command.c_str(), nullptr};
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, "/bin/sh", &actions, &attributes,
                                  const_cast<char* const*>(words), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Error::from_errno(error, "cannot run " + command);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) return Error(Code::kInternal, fmt::format("{} ended with {}", command, status));
  return {};
}

}  // namespace

Status point(std::string_view name) {
  const std::optional<Action> action = take(name);
  if (!action) return {};
  if (action->verb == "kill") {
    ::kill(::getpid(), SIGKILL);
  } else if (action->verb == "stop") {
    ::kill(::getpid(), SIGSTOP);
  } else if (action->verb == "run") {
    const Status ran = run(action->argument);
    if (!ran) return ran.error().while_doing(fmt::format("fault point {}", name));
  } else if (action->verb == "error") {
    return Error(Code::kInternal,
                 fmt::format("fault point {}{}{}", name, action->argument.empty() ? "" : ": ",
                             action->argument));
  } else {
    return Error(Code::kInvalidArgument,
                 fmt::format("fault point {} cannot {}", name, action->verb));
  }
  return {};
}

bool armed(std::string_view name) { return take(name).has_value(); }

}  // namespace gcr::fault

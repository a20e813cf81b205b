// What the tests of control groups share.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string_view>
#include <vector>

#include "migrate-agent/linux/cgroups/hierarchy.h"

namespace gcr::cgroups {

/// The control groups of this machine, for a test in each.
inline std::vector<Hierarchy> all_with(std::string_view controller) {
  std::vector<Hierarchy> found = hierarchies();
  std::erase_if(found, [&](const Hierarchy& one) { return !one.has(controller); });
  return found;
}

/// A child that sleeps. Killed and reaped at the end.
class Sleeper {
 public:
  Sleeper() : pid_(::fork()) {
    if (pid_ != 0) return;
    for (;;) ::pause();
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  ~Sleeper() { end(); }

  pid_t pid() const { return pid_; }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  /// Neither killed nor stopped.
  bool untouched() const {
    int status = 0;
    return ::waitpid(pid_, &status, WNOHANG | WUNTRACED) == 0;
  }

 private:
  pid_t pid_;
};

}  // namespace gcr::cgroups

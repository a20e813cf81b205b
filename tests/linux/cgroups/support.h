// What the tests of control groups share.
#pragma once

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
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
  /// `root` is its root directory.
  explicit Sleeper(const std::filesystem::path& root = "/") : pid_(::fork()) {
    if (pid_ == 0) {
      if (::chroot(root.c_str()) != 0) ::_exit(1);
      for (;;) ::pause();
    }
    const auto link = fmt::format("/proc/{}/root", pid_);
    while (std::filesystem::read_symlink(link) != root) ::usleep(1000);
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

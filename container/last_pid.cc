#include "container/last_pid.h"

#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

#include "container/bundle.h"
#include "src/base/random.h"
#include "src/base/unique_fd.h"

namespace gcr::container {
namespace {

constexpr const char* kLimit = "/proc/sys/kernel/pid_max";
constexpr const char* kLast = "/proc/sys/kernel/ns_last_pid";

/// Returns whether the PID that the process has in its own namespace is 1.
bool is_first(pid_t pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("NSpid:")) return line.ends_with("\t1");
  }
  return false;
}

ino_t namespace_of(const std::string& process) {
  struct stat facts {};
  return ::stat(("/proc/" + process + "/ns/pid").c_str(), &facts) == 0 ? facts.st_ino : 0;
}

/// In a process of the namespace: the kernel applies these files to the namespace of the process
/// that uses them, in each procfs. Returns errno, or 0.
int set_last_pid() {
  long limit = 0;
  {
    std::ifstream file(kLimit);
    if (!(file >> limit)) return EIO;
  }
  std::ofstream file(kLast);
  errno = 0;
  // The last eighth is for the PIDs that come after this one.
  const long range = limit / 8 * 3;
  file << limit / 2 + std::bit_cast<std::uint32_t>(random_bytes<4>()) % range << std::flush;
  if (file) return 0;
  return errno != 0 ? errno : EIO;
}

/// Waits for a child that ends with an errno; returns that.
int errno_of(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return errno;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
}

/// Joins the namespace and does the work in a child, which is in it. Returns errno, or 0.
int set_in_namespace_of(int pidfd) {
  if (::setns(pidfd, CLONE_NEWPID) != 0) return errno;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(set_last_pid());
  return child < 0 ? errno : errno_of(child);
}

}  // namespace

Result<pid_t> read_pid_file(const std::filesystem::path& path) {
  GCR_ASSIGN(const std::string text, read_file(path));
  const std::string_view digits =
      std::string_view(text).substr(0, text.find_last_not_of(" \n") + 1);
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), pid);
  if (error == std::errc() && end == digits.data() + digits.size() && pid > 1) return pid;
  return Error(Code::kInvalidArgument, path.string() + " has no PID");
}

Status raise_last_pid(pid_t init) {
  const std::string doing = fmt::format("cannot reserve PIDs in the container of process {}", init);
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, init, 0)));
  if (!pidfd) return Error::from_errno(errno, doing);
  const ino_t own = namespace_of("self");
  const ino_t there = namespace_of(std::to_string(init));
  const bool fits = is_first(init) && own != 0 && there != 0 && own != there;
  // If the process was not reaped before, what was read is its own.
  if (::syscall(SYS_pidfd_send_signal, pidfd.get(), 0, nullptr, 0) != 0) {
    return Error::from_errno(errno, doing);
  }
  if (!fits) {
    return Error(Code::kRefused, doing + ": it is not the first process of a PID namespace");
  }
  // In a child: this process must not leave its namespace for children that it starts later.
  const pid_t child = ::fork();
  if (child == 0) ::_exit(set_in_namespace_of(pidfd.get()));
  const int error = child < 0 ? errno : errno_of(child);
  if (error == 0) return {};
  return Error::from_errno(error, doing);
}

}  // namespace gcr::container

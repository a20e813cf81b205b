#include "migrate-agent/preflight/security_labels.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>

#include "migrate-agent/process/surroundings.h"
#include "src/base/descriptor_passing.h"
#include "src/base/unique_fd.h"

namespace gcr::agent {
namespace {

using preflight::Findings;

/// In the forked child, which calls the kernel alone: takes one file from `socket` and ends with 1
/// if it was refused.
[[noreturn]] void receive_and_exit(int socket, const std::string& command) {
  const int label = ::open("/proc/self/attr/current", O_WRONLY | O_CLOEXEC);
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::write(label, command.data(), command.size()) != static_cast<ssize_t>(command.size())) {
    ::_exit(0);
  }
  char byte = 0;
  int file = -1;
  const ReceivedMessage got =
      receive_with_descriptors(socket, writable_bytes_of(byte), {&file, 1}, 0);
  ::_exit(got.length == 1 && got.count == 0 ? 1 : 0);
}

/// Whether a process that is under the profile, and in a mount namespace of its own as a restored
/// one is, may be sent a file that the agent has opened outside of it, as a GPU's memory is: a
/// child tries. AppArmor finds no path from its root to such a file, and refuses it unless the
/// profile says attach_disconnected (apparmor.d(5)). True if the child cannot try.
bool receives_files(const std::string& profile) {
  const std::string command = "changeprofile " + profile;
  UniqueFd file(::open("/dev/nvidiactl", O_RDWR | O_CLOEXEC));  // what VRAM is a file of
  if (!file) file = UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC));
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return true;
  const UniqueFd here(ends[0]);
  const UniqueFd there(ends[1]);
  const char byte = 0;
  const int descriptor = file.get();
  send_with_descriptors(here.get(), bytes_of(byte), {&descriptor, 1}, 0);
  const pid_t child = ::fork();
  if (child < 0) return true;
  if (child == 0) receive_and_exit(there.get(), command);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return !WIFEXITED(status) || WEXITSTATUS(status) != 1;
}

bool has_profile(const std::string& profile) {
  std::ifstream profiles("/sys/kernel/security/apparmor/profiles");
  for (std::string line; std::getline(profiles, line);) {
    if (line.starts_with(profile + " (")) return true;
  }
  return false;
}

void compare_profile(const std::string& profile, Findings& findings) {
  if (!has_profile(profile)) {
    findings.add("security-label",
                 fmt::format("this host has no AppArmor profile \"{}\"", profile));
  } else if (!receives_files(profile)) {
    findings.add(
        "security-label",
        fmt::format("the AppArmor profile \"{}\" keeps GPU memory from a restored process: "
                    "it lacks flags=(attach_disconnected)",
                    profile));
  }
}

/// A restored process has the context of the agent. Without SELinux here, what was not confined
/// there loses nothing.
void compare_context(const std::string& there, Findings& findings) {
  const std::string here = process::selinux_context(::getpid());
  const bool confined = there.find(":unconfined_t:") == std::string::npos;
  if (here == there || (here.empty() && !confined)) return;
  findings.add("security-label",
               here.empty() ? fmt::format("the process is in SELinux's context {}, and this host "
                                          "is without SELinux",
                                          there)
                            : fmt::format("the process is in SELinux's context {}, and would be in "
                                          "the agent's here, {}",
                                          there, here));
}

}  // namespace

void compare_security_labels(const proto::ProcessFacts& process, Findings& findings) {
  if (!process.apparmor_profile().empty()) compare_profile(process.apparmor_profile(), findings);
  if (!process.selinux_context().empty()) compare_context(process.selinux_context(), findings);
}

}  // namespace gcr::agent

#include "migrate-agent/criu/launch/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "src/base/descriptor_passing.h"

namespace gcr::criu::launch {
namespace {

constexpr int kFirstFreeFd = kGroupFd + 1;  // above every fixed descriptor

bool place(int from, int to) {
  return dup2(from, to) == to;  // the copy survives exec
}

/// Working directory and environment for gcr-in-criu.so, whose descriptors are in place. Without it
/// a CRIU that has to enter a namespace starts in a directory in which it can do nothing.
bool prepare_inside(int control, bool enters, char** environment) {
  static char preload[] = "LD_PRELOAD=/proc/self/fd/5";
  static_assert(kLibraryFd == 5);
  *environment = preload;
  return !enters || (chdir("/proc") == 0 && place(control, kControlFd));
}

}  // namespace

void send_control(int control_fd, const ControlMessage& message, int fd) {
  // If it fails, the receiver is gone.
  (void)send_with_descriptors(control_fd, bytes_of(message), {&fd, fd >= 0 ? 1U : 0U}, 0);
}

void fail_and_exit(int control_fd, Step step) {
  send_control(control_fd, {Event::kFailed, step, errno});
  _exit(127);
}

bool arrange_descriptors(int third_fd, int images_fd, const Inside& inside) {
  const int from[] = {third_fd,          images_fd,         inside.library,    inside.mounts,
                      inside.memory,     inside.hold,       inside.plugin,     inside.status,
                      inside.streams[0], inside.streams[1], inside.streams[2], inside.group};
  const int to[] = {
      kRpcFd,    kImagesFd, kLibraryFd,     kMountsFd,          kMemoryFd,          kHoldFd,
      kPluginFd, kStatusFd, kFirstStreamFd, kFirstStreamFd + 1, kFirstStreamFd + 2, kGroupFd};
  constexpr int kCount = sizeof(to) / sizeof(to[0]);
  // Any of them may be in another's place.
  int copies[kCount];
  for (int i = 0; i < kCount; ++i) {
    copies[i] = from[i] < 0 ? -1 : fcntl(from[i], F_DUPFD_CLOEXEC, kFirstFreeFd);
    if (from[i] >= 0 && copies[i] < 0) return false;
  }
  syscall(SYS_close_range, static_cast<unsigned>(STDERR_FILENO + 1), ~0u, CLOSE_RANGE_CLOEXEC);
  for (int i = 0; i < kCount; ++i) {
    if (copies[i] >= 0 && !place(copies[i], to[i])) return false;
  }
  return true;
}

void reset_signals() {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  for (int signal_number = 1; signal_number < NSIG; ++signal_number) {
    sigaction(signal_number, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

bool number_after(const char* pid) {
  const int fd = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
  const ssize_t length = static_cast<ssize_t>(strlen(pid));
  const bool set = fd >= 0 && write(fd, pid, length) == length;
  const int error = errno;
  if (fd >= 0) close(fd);
  errno = error;
  return set;
}

void exec_criu(const char* const* argv, const char* const* variables, int control_fd, int images_fd,
               const Inside& inside) {
  reset_signals();
  const int control = fcntl(control_fd, F_DUPFD_CLOEXEC, kFirstFreeFd);
  if (control < 0) fail_and_exit(control_fd, Step::kDescriptors);
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    fail_and_exit(control, Step::kSocketpair);
  }
  send_control(control, {Event::kRpcSocket}, pair[0]);
  // The control socket, which reports a failed exec, ends with a successful one.
  if (!arrange_descriptors(pair[1], images_fd, inside)) fail_and_exit(control, Step::kDescriptors);
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  const int errors = openat(kImagesFd, "criu.err", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (nothing < 0 || errors < 0 || dup2(nothing, STDIN_FILENO) < 0 ||
      dup2(errors, STDOUT_FILENO) < 0 || dup2(errors, STDERR_FILENO) < 0 ||
      fchdir(kImagesFd) != 0) {
    fail_and_exit(control, Step::kDescriptors);
  }
  static char path[] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
  char* environment[kMostVariables + 3] = {path};
  std::size_t count = 1;
  for (; *variables != nullptr && count <= kMostVariables; ++variables) {
    environment[count++] = const_cast<char*>(*variables);
  }
  if (inside.library >= 0 && !prepare_inside(control, inside.mounts >= 0, &environment[count])) {
    fail_and_exit(control, Step::kDescriptors);
  }
  execve(argv[0], const_cast<char* const*>(argv), environment);
  fail_and_exit(control, Step::kExecCriu);
}

}  // namespace gcr::criu::launch

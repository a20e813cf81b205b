#include "container/supervisor.h"

#include <errno.h>
#include <linux/close_range.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "container/messages.h"

namespace gcr::container {
namespace {

static_assert(sizeof kNameSupervisor <= 16);

constexpr int kNotFound = 127;
constexpr int kNotExecutable = 126;
constexpr pid_t kInit = 1;

/// Executes the program as the leader of a session with the terminal, as it would be without
/// gcr-init.
[[noreturn]] void execute(const Program& program, const Signals& signals) {
  setsid();
  if (program.terminal) ioctl(STDIN_FILENO, TIOCSCTTY, 0);
  signals.restore();
  execvp(program.words[0], program.words);
  const int status = errno == ENOENT ? kNotFound : kNotExecutable;
  complain(program);
  _exit(status);
}

/// Ends this process if the program has ended.
void reap_all(pid_t program) {
  Ended ended;
  while (reap(ended)) {
    if (ended.pid == program) _exit(ended.status);
  }
}

}  // namespace

void complain(const Program& program) {
  dprintf(STDERR_FILENO, "gcr-init: cannot start %s: %s\n", program.words[0], strerror(errno));
}

void close_other_descriptors() { syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, 0); }

void supervise(const Program& program, const Signals& signals) {
  setsid();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  prctl(PR_SET_NAME, kNameSupervisor);
  const pid_t child = fork();
  if (child == 0) execute(program, signals);
  if (child < 0) {
    complain(program);
    _exit(kOwnFailure);
  }
  close_other_descriptors();
  while (true) {
    reap_all(child);
    const siginfo_t taken = signals.take();
    if (taken.si_signo != SIGCHLD && taken.si_pid <= kInit) pass_on(taken, child);
  }
}

}  // namespace gcr::container

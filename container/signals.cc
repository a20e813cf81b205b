#include "container/signals.h"

#include <sys/wait.h>
#include <time.h>

namespace gcr::container {

Signals::Signals() {
  struct sigaction by_default = {};
  by_default.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &by_default, &child_);
  sigfillset(&all_);
  sigprocmask(SIG_BLOCK, &all_, &mask_);
}

siginfo_t Signals::take() const {
  siginfo_t taken = {};
  while (sigwaitinfo(&all_, &taken) < 0) {
  }
  return taken;
}

bool Signals::take_pending(const sigset_t& set, siginfo_t& taken) {
  const timespec at_once = {};
  return sigtimedwait(&set, &taken, &at_once) > 0;
}

void Signals::restore() const {
  sigaction(SIGCHLD, &child_, nullptr);
  sigprocmask(SIG_SETMASK, &mask_, nullptr);
}

void pass_on(const siginfo_t& taken, pid_t to) {
  if (taken.si_code == SI_QUEUE) {
    sigqueue(to, taken.si_signo, taken.si_value);
  } else {
    kill(to, taken.si_signo);
  }
}

bool reap(Ended& ended) {
  int status = 0;
  ended.pid = waitpid(-1, &status, WNOHANG | __WALL);
  ended.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return ended.pid > 0;
}

}  // namespace gcr::container

// gcr-init: PID 1 of a container. It never moves; the job below it does.
//
//   gcr-init run PROGRAM [ARGUMENT...]           starts the program below a supervisor
//   gcr-init run-tracked PROGRAM [ARGUMENT...]   the same
//   gcr-init receive KEY PROGRAM [ARGUMENT...]   starts nothing: waits for a job that the agent
//                                                restores in this container. KEY is the
//                                                migration's, for the agent; the program is for
//                                                ps(1) alone
//
// It reaps every process whose parent has ended, passes signals on to the job's root, and ends with
// the root's status. The agent's orders and the names that answer them are in messages.h. While it
// has no root, a signal whose default action ends a process ends it: with 128 plus its number
// before a job has arrived, with 0 after the job has moved away.
//
// It is linked statically: nothing in the image is needed, and the supervisor, which moves, is the
// same on every host. It allocates no memory.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <termios.h>
#include <unistd.h>

#include "container/messages.h"
#include "container/signals.h"
#include "container/supervisor.h"

namespace gcr::container {
namespace {

static_assert(sizeof kNameWithRoot <= 16 && sizeof kNameReceiving <= 16 && sizeof kNameMoved <= 16);

/// The statuses of the children that were reaped last: a restored root may end before the agent has
/// named it.
class EndedChildren {
 public:
  void add(const Ended& ended) {
    kept_[next_] = ended;
    next_ = (next_ + 1) % kCount;
  }

  /// Finds the last child with this PID.
  const Ended* find(pid_t pid) const {
    for (int back = 1; back <= kCount; ++back) {
      const Ended& each = kept_[(next_ + kCount - back) % kCount];
      if (each.pid == pid) return &each;
    }
    return nullptr;
  }

 private:
  static constexpr int kCount = 256;
  Ended kept_[kCount];
  int next_ = 0;
};

bool ends_by_default(int number) {
  switch (number) {
    case SIGCHLD:
    case SIGCONT:
    case SIGTSTP:
    case SIGTTIN:
    case SIGTTOU:
    case SIGURG:
    case SIGWINCH:
    case kOrderSignal:
      return false;
    default:
      return true;
  }
}

/// Gives the terminal up, so that the program's session can have it; false if there is none. The
/// kernel sends this process SIGHUP and SIGCONT for that, which nothing else should see.
bool give_up_terminal() {
  if (tcgetsid(STDIN_FILENO) != getpid() || ioctl(STDIN_FILENO, TIOCNOTTY) != 0) return false;
  sigset_t sent;
  sigemptyset(&sent);
  sigaddset(&sent, SIGHUP);
  sigaddset(&sent, SIGCONT);
  siginfo_t ignored;
  while (Signals::take_pending(sent, ignored)) {
  }
  return true;
}

class Init {
 public:
  explicit Init(const Signals& signals) : signals_(signals) {}

  void start(char** words) {
    const Program program = {words, give_up_terminal()};
    prctl(PR_SET_NAME, kNameWithRoot);
    root_ = fork();
    if (root_ == 0) supervise(program, signals_);
    if (root_ > 0) return;
    complain(program);
    _exit(kOwnFailure);
  }

  void receive() { prctl(PR_SET_NAME, kNameReceiving); }

  [[noreturn]] void run() {
    close_other_descriptors();
    while (true) {
      reap_all();
      treat(signals_.take());
    }
  }

 private:
  void reap_all() {
    Ended ended;
    while (reap(ended)) {
      if (ended.pid == root_) _exit(ended.status);
      children_.add(ended);
    }
  }

  void treat(const siginfo_t& taken) {
    if (taken.si_signo == kOrderSignal && taken.si_code == SI_QUEUE && taken.si_pid == 0) {
      take_order(taken.si_value.sival_int);
    } else if (root_ == 0) {
      if (ends_by_default(taken.si_signo)) _exit(moved_ ? 0 : 128 + taken.si_signo);
    } else if (taken.si_signo != SIGCHLD) {
      pass_on(taken, root_);
    }
  }

  void take_order(int value) {
    if (value == kMoved) {
      set_root(0, kNameMoved);
      moved_ = true;
    } else if (value > 1) {
      receive_root(value);
    }
  }

  void receive_root(pid_t root) {
    // A process exists until it is reaped. What an earlier process with its PID ended with does not
    // count.
    if (kill(root, 0) == 0 || errno == EPERM) return set_root(root, kNameWithRoot);
    if (const Ended* ended = children_.find(root)) _exit(ended->status);
  }

  void set_root(pid_t root, const char* name) {
    root_ = root;
    prctl(PR_SET_NAME, name);
  }

  const Signals& signals_;
  pid_t root_ = 0;  // 0: none
  bool moved_ = false;
  EndedChildren children_;
};

int complain_about_usage() {
  dprintf(STDERR_FILENO,
          "gcr-init is the first process of a container: gcr-runtime(8) starts it\n");
  return kOwnFailure;
}

int run_init(int argc, char** argv) {
  const auto has_mode = [&](const char* mode, int words) {
    return argc >= words && strcmp(argv[1], mode) == 0;
  };
  const bool receives = has_mode(kModeReceive, 4);
  if (!receives && !has_mode(kModeRun, 3) && !has_mode(kModeRunTracked, 3)) {
    return complain_about_usage();
  }
  const Signals signals;
  Init init(signals);
  if (receives) {
    init.receive();
  } else {
    init.start(argv + 2);
  }
  init.run();
}

}  // namespace
}  // namespace gcr::container

int main(int argc, char** argv) { return gcr::container::run_init(argc, argv); }

// gcr-slurm-wait: the process that Slurm regards as a job's batch script while the job's processes
// migrate.
//
//   gcr-slurm-wait FOLDER       in a placeholder job: waits for the processes that move into it
//   gcr-slurm-wait FOLDER PID   in a job started with `--migratable`: PID is the root, its child
//
// FOLDER is `[slurm] folder` of agent.toml; %n in it stands for $SLURMD_NODENAME, as in slurm.conf.
// The agent writes these files to FOLDER/$SLURM_JOB_ID:
//   pid      the root's PID on this host, once the processes have joined the job
//   status   the root's wait status, in decimal, once it has ended
//   moved    the id of the job into which the processes have moved
// It forwards signals to the root and ends as the root does: with its exit status or by its signal.
// After the processes have moved away, it waits for SIGURG, which the controller sends once Slurm
// knows the successor, and exits with 0. It runs as the job's user, and trusts FOLDER because only
// root writes there.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

constexpr int kForwarded[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGTERM, SIGUSR1,
                              SIGUSR2, SIGCONT, SIGALRM, SIGXCPU, SIGWINCH};
// Ends a job whose processes have moved away; ignored by default, so it is harmless in other
// programs.
constexpr int kRelease = SIGURG;
constexpr int kPollMilliseconds = 50;
// The agent or its reaper writes the root's status within this time after its end.
constexpr int kStatusMilliseconds = 30'000;
constexpr int kOwnFailure = 125;

const char* from_environment(const char* name) {
  const char* value = getenv(name);
  return value != nullptr ? value : "";
}

/// Reads the number in FOLDER/JOB/NAME; -1 if the file does not exist yet.
long number_in(const char* folder, const char* name) {
  const char* mark = strstr(folder, "%n");
  const int before = static_cast<int>(mark != nullptr ? mark - folder : strlen(folder));
  char path[4096];
  snprintf(path, sizeof path, "%.*s%s%s/%s/%s", before, folder,
           mark != nullptr ? from_environment("SLURMD_NODENAME") : "",
           mark != nullptr ? mark + 2 : "", from_environment("SLURM_JOB_ID"), name);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return -1;
  char text[32] = {};
  const ssize_t got = read(file, text, sizeof text - 1);
  close(file);
  return got > 0 ? strtol(text, nullptr, 10) : -1;
}

[[noreturn]] void end_as(int status) {
  if (!WIFSIGNALED(status)) _exit(WEXITSTATUS(status));
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const int number = WTERMSIG(status);
  signal(number, SIG_DFL);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  sigprocmask(SIG_UNBLOCK, &one, nullptr);
  raise(number);
  _exit(128 + number);
}

class Waiter {
 public:
  Waiter(const char* folder, pid_t child, int signals)
      : folder_(folder), child_(child), root_(child), signals_(signals) {}

  [[noreturn]] void run() {
    if (child_ > 0) watch(child_);
    while (true) {
      if (root_ == 0) find_root();
      pollfd events[] = {{signals_, POLLIN, 0}, {root_fd_, POLLIN, 0}};
      poll(events, 2, timeout());
      if ((events[0].revents & POLLIN) != 0) forward_signal();
      if (root_fd_ >= 0 && (events[1].revents & POLLIN) != 0) root_ended();
      if (ended_) finish();
    }
  }

 private:
  int timeout() const { return root_ > 0 && !ended_ ? -1 : kPollMilliseconds; }

  void find_root() {
    const long pid = number_in(folder_, "pid");
    if (pid > 1) watch(static_cast<pid_t>(pid));
  }

  void watch(pid_t pid) {
    root_ = pid;
    root_fd_ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    if (root_fd_ < 0) root_ended();
  }

  void root_ended() {
    if (root_fd_ >= 0) close(root_fd_);
    root_fd_ = -1;
    ended_ = true;
    if (child_ > 0) waitpid(child_, &child_status_, 0);
  }

  void forward_signal() {
    signalfd_siginfo taken;
    if (read(signals_, &taken, sizeof taken) != sizeof taken) return;
    const int number = static_cast<int>(taken.ssi_signo);
    if (number == kRelease) {
      released_ = has_moved();
    } else if (root_fd_ >= 0) {
      syscall(SYS_pidfd_send_signal, root_fd_, number, nullptr, 0);
    } else if (root_ == 0 && number == SIGTERM) {
      end_as(SIGTERM);  // no process has moved into the job yet
    }
  }

  bool has_moved() const { return number_in(folder_, "moved") >= 0; }

  /// Determines how the root ended, and exits accordingly: it ended on this host, or it moved away.
  void finish() {
    if (has_moved()) {
      if (released_) _exit(0);
      return;
    }
    if (child_ > 0) end_as(child_status_);
    const long status = number_in(folder_, "status");
    if (status >= 0) end_as(static_cast<int>(status));
    waited_ += kPollMilliseconds;
    if (waited_ < kStatusMilliseconds) return;
    fprintf(
        stderr,
        "gcr-slurm-wait: process %d has ended, and the agent has not reported its status within "
        "%d s: ending with SIGKILL\n",
        root_, kStatusMilliseconds / 1000);
    end_as(SIGKILL);
  }

  const char* folder_;
  pid_t child_;  // 0 in a placeholder
  pid_t root_;   // 0 until it is known
  int signals_;
  int root_fd_ = -1;  // a pidfd while the root lives
  int child_status_ = 0;
  int waited_ = 0;  // milliseconds
  bool ended_ = false;
  bool released_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3 || getenv("SLURM_JOB_ID") == nullptr) {
    fprintf(stderr, "gcr-slurm-wait must be started in a Slurm job: see docs/slurm.md\n");
    return kOwnFailure;
  }
  sigset_t set;
  sigemptyset(&set);
  for (const int number : kForwarded) sigaddset(&set, number);
  sigaddset(&set, kRelease);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  const int signals = signalfd(-1, &set, SFD_CLOEXEC);
  if (signals < 0) return kOwnFailure;
  Waiter(argv[1], argc == 3 ? static_cast<pid_t>(strtol(argv[2], nullptr, 10)) : 0, signals).run();
}

// gcr-supervisor: the root of a job that `gcr-migrate run --output` has started.
//
//   gcr-supervisor FILE COMMAND [ARGUMENT...]
// with descriptors as in supervisor.h, in its own session. It starts the command and copies the
// job's output from a pipe into FILE. As the job's root it moves with the job: a process outside
// could neither keep the pipe nor be told to reopen FILE.
//
// SIGHUP makes it reopen FILE, for logrotate. It passes SIGINT, SIGQUIT, SIGTERM, SIGUSR1 and
// SIGUSR2 on to the command, or to its own process group once the command has ended. Processes of
// the job that lose their parent become its children, so that they stay in the job. When the last
// one has ended it ends with the command's status, or with 128 plus the number of the signal that
// ended the command.
//
// Output that cannot be written is lost, and FILE says how much as soon as it can be written again:
// a full disk must not stop the job.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/cli/supervisor.h"

namespace {

using gcr::cli::kStartedFd;
using gcr::cli::NotStarted;

constexpr int kOutputFd = STDOUT_FILENO;

volatile sig_atomic_t pending[NSIG];

/// Records a signal, unless this process sent it to its own process group.
void note(int number, siginfo_t* info, void*) {
  if (info->si_code == SI_USER && info->si_pid == getpid()) return;
  pending[number] = 1;
}

bool take(int number) {
  const bool was_pending = pending[number] != 0;
  pending[number] = 0;
  return was_pending;
}

/// Blocks the signals, so that they are recorded only during ppoll().
void catch_signals(sigset_t& before) {
  struct sigaction action = {};
  action.sa_sigaction = note;
  action.sa_flags = SA_SIGINFO;
  sigset_t caught;
  sigemptyset(&caught);
  const auto catch_one = [&](int number) {
    sigaction(number, &action, nullptr);
    sigaddset(&caught, number);
  };
  for (const int number : gcr::cli::kPassedOn) catch_one(number);
  catch_one(SIGCHLD);
  sigprocmask(SIG_BLOCK, &caught, &before);
}

[[noreturn]] void fail_to_start(bool command_found) {
  const NotStarted failure = {command_found, errno};
  (void)!write(kStartedFd, &failure, sizeof failure);
  _exit(125);
}

[[noreturn]] void become(char** command, int output, const sigset_t& mask) {
  if (dup2(output, STDOUT_FILENO) < 0 || dup2(output, STDERR_FILENO) < 0) fail_to_start(false);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  execvp(command[0], command);
  fail_to_start(true);
}

class Output {
 public:
  explicit Output(const char* path) : path_(path) {}

  /// Writes all bytes, or counts them as lost.
  void write(const char* bytes, size_t size) {
    if (lost_bytes_ != 0) report_loss();
    if (lost_bytes_ != 0 || !write_all(bytes, size)) lost_bytes_ += size;
  }

  /// Reopens the output file. Keeps the old one if the path cannot be opened.
  void open_again() {
    const int fd = open(path_, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
    if (fd < 0) {
      char line[256];
      snprintf(line, sizeof line, "gcr-supervisor: cannot open the output file again: %s\n",
               strerror(errno));
      write(line, strlen(line));
      return;
    }
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    if (fd > STDERR_FILENO) close(fd);
  }

 private:
  /// Writes all bytes; on failure advances past those that were written.
  static bool write_all(const char*& bytes, size_t& size) {
    while (size > 0) {
      const ssize_t written = ::write(kOutputFd, bytes, size);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return false;
      bytes += written;
      size -= static_cast<size_t>(written);
    }
    return true;
  }

  void report_loss() {
    char line[128];
    snprintf(line, sizeof line, "\ngcr-supervisor: %llu bytes of output were lost here\n",
             lost_bytes_);
    const char* at = line;
    size_t size = strlen(line);
    if (write_all(at, size)) lost_bytes_ = 0;
  }

  const char* path_;
  unsigned long long lost_bytes_ = 0;
};

class Supervisor {
 public:
  Supervisor(const char* path, int pipe, pid_t command)
      : output_(path), pipe_(pipe), command_(command) {}

  /// Runs until the job has ended; returns the exit status.
  int run(const sigset_t& while_waiting) {
    while (children_) {
      pollfd readable = {pipe_, POLLIN, 0};
      const int ready = ppoll(&readable, 1, nullptr, &while_waiting);
      if (take(SIGHUP)) output_.open_again();
      pass_signals_on();
      if (take(SIGCHLD)) reap();
      if (ready > 0 && copy() == 0) pipe_ = -1;  // no process has the write end any more
    }
    fcntl(pipe_, F_SETFL, O_NONBLOCK);
    while (copy() > 0) {
    }
    return WIFSIGNALED(status_) ? 128 + WTERMSIG(status_) : WEXITSTATUS(status_);
  }

 private:
  ssize_t copy() {
    static char bytes[64 * 1024];
    const ssize_t got = read(pipe_, bytes, sizeof bytes);
    if (got > 0) output_.write(bytes, static_cast<size_t>(got));
    return got;
  }

  void pass_signals_on() {
    for (const int number : gcr::cli::kPassedOn) {
      if (take(number)) kill(command_, number);
    }
  }

  void reap() {
    int status = 0;
    pid_t ended = 0;
    while ((ended = waitpid(-1, &status, WNOHANG)) > 0) {
      if (ended != command_) continue;
      command_ = 0;  // for kill(): the process group
      status_ = status;
    }
    children_ = ended == 0;
  }

  Output output_;
  int pipe_;
  pid_t command_;
  int status_ = 0;
  bool children_ = true;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "gcr-supervisor is started by gcr-migrate run --output\n");
    return 125;
  }
  fcntl(kStartedFd, F_SETFD, FD_CLOEXEC);
  sigset_t mask;
  catch_signals(mask);
  int ends[2];
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 || pipe2(ends, O_CLOEXEC) != 0) fail_to_start(false);
  const pid_t command = fork();
  if (command < 0) fail_to_start(false);
  if (command == 0) become(argv + 2, ends[1], mask);
  close(ends[1]);
  close(kStartedFd);
  return Supervisor(argv[1], ends[0], command).run(mask);
}

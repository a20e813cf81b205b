#include "src/cli/supervised.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "src/cli/supervisor.h"

namespace gcr::cli {
namespace {

sigset_t passed_on() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int number : kPassedOn) ::sigaddset(&signals, number);
  return signals;
}

[[noreturn]] void fail_to_start(int started) {
  const NotStarted failure{false, errno};
  (void)!::write(started, &failure, sizeof failure);
  ::_exit(125);
}

void reset_signals() {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) ::sigaction(number, &action, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

/// Runs in the child: executes the supervisor. Closes descriptors that the caller's shell left
/// open, which would keep the job from moving.
[[noreturn]] void become_supervisor(char* const* words, int output, int started) {
  constexpr int kFree = kStartedFd + 1;
  ::setsid();
  reset_signals();
  const int target = ::fcntl(output, F_DUPFD, kFree);
  const int report = ::fcntl(started, F_DUPFD, kFree);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (target < 0 || report < 0 || nothing < 0 || ::dup2(nothing, STDIN_FILENO) < 0 ||
      ::dup2(target, STDOUT_FILENO) < 0 || ::dup2(target, STDERR_FILENO) < 0 ||
      ::dup2(report, kStartedFd) < 0 || ::syscall(SYS_close_range, kFree, ~0U, 0) != 0) {
    fail_to_start(started);
  }
  ::execv(words[0], words);
  fail_to_start(kStartedFd);
}

/// Reads the failure; 0 if the pipe was closed without one.
Result<int> read_failure(const UniqueFd& pipe) {
  NotStarted failure{};
  ssize_t got = 0;
  do got = ::read(pipe.get(), &failure, sizeof failure);
  while (got < 0 && errno == EINTR);
  if (got < 0) return Error::from_errno(errno, "cannot read whether the command has started");
  if (got == 0) return 0;
  if (!failure.command_found)
    return Error::from_errno(failure.error, "cannot start its supervisor");
  return failure.error;
}

}  // namespace

Result<UniqueFd> open_output(const std::filesystem::path& path) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666));
  if (!file) return Error::from_errno(errno, "cannot open the output file " + path.string());
  return file;
}

Result<Supervised> start_supervised(const std::filesystem::path& supervisor,
                                    const std::filesystem::path& output_path,
                                    const UniqueFd& output,
                                    const std::vector<std::string>& command) {
  std::vector<const char*> words = {supervisor.c_str(), output_path.c_str()};
  for (const std::string& word : command) words.push_back(word.c_str());
  words.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Error::from_errno(errno, "cannot create a pipe");
  const UniqueFd failure(ends[0]);
  UniqueFd started(ends[1]);
  sigset_t blocked = passed_on();
  ::sigaddset(&blocked, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) return Error::from_errno(errno, "cannot create a process");
  if (pid == 0) {
    become_supervisor(const_cast<char* const*>(words.data()), output.get(), started.get());
  }
  started.reset();
  const auto error = read_failure(failure);
  if (error && *error == 0) return Supervised{pid, 0};
  ::waitpid(pid, nullptr, 0);
  if (!error) return error.error();
  return Supervised{-1, *error};
}

int await_supervised(pid_t supervisor) {
  sigset_t awaited = passed_on();
  ::sigaddset(&awaited, SIGCHLD);
  for (;;) {
    int status = 0;
    if (::waitpid(supervisor, &status, WNOHANG) == supervisor) return status;
    int number = 0;
    if (::sigwait(&awaited, &number) == 0 && number != SIGCHLD) ::kill(supervisor, number);
  }
}

}  // namespace gcr::cli

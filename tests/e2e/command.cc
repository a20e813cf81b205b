#include "tests/e2e/command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace gcr::e2e {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void throw_errno(int number, const std::string& doing) {
  throw std::system_error(number, std::generic_category(), doing);
}

int remaining_ms(Clock::time_point end) {
  const auto left = std::chrono::duration_cast<Milliseconds>(end - Clock::now()).count();
  return left > 0 ? static_cast<int>(left) : 0;
}

bool poll_readable(int fd, int timeout_ms) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, timeout_ms) == 1;
}

/// posix_spawn with a new session and the given streams.
pid_t spawn(const std::vector<std::string>& argv, const Streams& streams) {
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  const int wanted[] = {streams.in, streams.out, streams.err};
  for (int fd = 0; fd < 3; ++fd) {
    if (wanted[fd] < 0) {
      ::posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", fd == 0 ? O_RDONLY : O_WRONLY,
                                         0);
    } else {
      ::posix_spawn_file_actions_adddup2(&actions, wanted[fd], fd);
    }
  }
  // The program inherits no descriptor of this process: it could not be moved with one.
  ::posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int error =
      ::posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw_errno(error, "start " + argv[0]);
  return pid;
}

int decode_status(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

UniqueFd make_output_file(std::string& path) {
  std::string pattern = "/tmp/gcr-e2e-output-XXXXXX";
  UniqueFd file(::mkostemp(pattern.data(), O_APPEND | O_CLOEXEC));
  if (!file) throw_errno(errno, "make " + pattern);
  path = pattern;
  return file;
}

}  // namespace

struct Program::Reaper {
  std::atomic<bool> ended = false;
  std::atomic<int> exit_code = -1;
  std::thread thread;
};

Program::Program(const std::vector<std::string>& argv, const Streams& streams)
    : pid_(spawn(argv, streams)),
      pidfd_(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0))),
      reaper_(std::make_unique<Reaper>()) {
  reaper_->thread = std::thread([pid = pid_, reaper = reaper_.get()] {
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    reaper->exit_code = decode_status(status);
    reaper->ended = true;
    reaper->ended.notify_all();
  });
}

Program::~Program() {
  if (running()) signal(SIGKILL);
  reaper_->thread.join();
}

bool Program::running() const { return !poll_readable(pidfd_.get(), 0); }

bool Program::wait(Milliseconds timeout) const {
  return poll_readable(pidfd_.get(), static_cast<int>(timeout.count()));
}

int Program::exit_code() const {
  reaper_->ended.wait(false);
  return reaper_->exit_code;
}

void Program::signal(int number) const {
  ::syscall(SYS_pidfd_send_signal, pidfd_.get(), number, nullptr, 0);
}

CommandResult run(const std::vector<std::string>& argv, Milliseconds timeout) {
  return BackgroundCommand(argv).finish(timeout);
}

BackgroundCommand::BackgroundCommand(const std::vector<std::string>& argv)
    : out_(make_output_file(out_path_)), err_(make_output_file(err_path_)) {
  program_ = std::make_unique<Program>(argv, Streams{-1, out_.get(), err_.get()});
}

BackgroundCommand::~BackgroundCommand() {
  ::unlink(out_path_.c_str());
  ::unlink(err_path_.c_str());
}

std::string BackgroundCommand::out_so_far() const { return read_file(out_path_); }
std::string BackgroundCommand::err_so_far() const { return read_file(err_path_); }

CommandResult BackgroundCommand::finish(Milliseconds timeout) {
  CommandResult result;
  if (program_->wait(timeout)) {
    result.exit_code = program_->exit_code();
  } else {
    program_.reset();
  }
  result.out = out_so_far();
  result.err = err_so_far();
  return result;
}

bool BackgroundCommand::wait_for_output(const std::function<bool(const std::string&)>& predicate,
                                        Milliseconds timeout) const {
  UniqueFd watch(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  ::inotify_add_watch(watch.get(), out_path_.c_str(), IN_MODIFY);
  ::inotify_add_watch(watch.get(), err_path_.c_str(), IN_MODIFY);
  UniqueFd ended(static_cast<int>(::syscall(SYS_pidfd_open, program_->pid(), 0)));
  const auto end = Clock::now() + timeout;
  for (;;) {
    const bool last_look = !program_->running();
    if (predicate(out_so_far() + err_so_far())) return true;
    pollfd entries[] = {{watch.get(), POLLIN, 0}, {ended.get(), POLLIN, 0}};
    if (last_look || ::poll(entries, ended ? 2 : 1, remaining_ms(end)) < 1) return false;
    char events[4096];
    while (::read(watch.get(), events, sizeof(events)) > 0) {
    }
  }
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool wait_for_content(const std::string& path,
                      const std::function<bool(const std::string&)>& predicate,
                      Milliseconds timeout) {
  UniqueFd watch(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  // Watches its directory: the file may not exist yet.
  const std::string directory = std::filesystem::path(path).parent_path();
  if (::inotify_add_watch(watch.get(), directory.c_str(), IN_CREATE | IN_MODIFY) < 0) return false;
  const auto end = Clock::now() + timeout;
  while (!predicate(read_file(path))) {
    if (!poll_readable(watch.get(), remaining_ms(end))) return false;
    char events[4096];
    while (::read(watch.get(), events, sizeof(events)) > 0) {
    }
  }
  return true;
}

}  // namespace gcr::e2e

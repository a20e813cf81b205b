#include "tests/migration/undo/processes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::undo::test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{60};

[[noreturn]] void execute(const std::vector<std::string>& command) {
  std::vector<const char*> argv;
  for (const std::string& word : command) argv.push_back(word.c_str());
  argv.push_back(nullptr);
  ::execv(argv[0], const_cast<char* const*>(argv.data()));
  ::_exit(127);
}

void reap(pid_t pid) {
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

journal::ProcessId identify(pid_t pid) {
  journal::ProcessId id;
  id.set_pid(pid);
  id.set_start_time(procfs::read_stat(pid).value_or(procfs::Stat()).start_time);
  return id;
}

fs::path built(const fs::path& path) {
  const char* folder = std::getenv("GCR_TEST_BIN");
  return folder == nullptr ? path : fs::path(folder) / path.filename();
}

std::string criu_program() {
  const char* path = std::getenv("GCR_CRIU");
  return path != nullptr ? path : GCR_CRIU_PATH;
}

Directory::Directory() {
  std::string path = "/dev/shm/gcr-recovery-test-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("cannot make " + path);
  path_ = path;
}

Directory::~Directory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

Program::Program(const fs::path& directory, const Options& options)
    : output_(directory / "output") {
  const std::string preload = options.preload ? built(GCR_PRELOAD_LIBRARY).string() : "";
  const std::vector<std::string> command{
      built(GCR_SCRIBBLER), "--vram", options.vram, "--check-every", "1",
      "--steps-per-second", "200"};
  pid_ = ::fork();
  if (pid_ == 0) {
    ::setsid();
    const int nothing = ::open("/dev/null", O_RDWR);
    const int output = ::open(output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    ::dup2(nothing, STDIN_FILENO);
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
    ::close_range(STDERR_FILENO + 1, ~0u, 0);
    if (!preload.empty()) ::setenv("LD_PRELOAD", preload.c_str(), 1);
    execute(command);
  }
  expect_progress();
}

Program::~Program() { kill(); }

void Program::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  reap(pid_);
  pid_ = -1;
}

std::uint64_t Program::steps() const {
  std::ifstream in(output_);
  std::uint64_t steps = 0;
  for (std::string line; std::getline(in, line) && !in.eof(); ++steps) {
    if (!line.starts_with("step=" + std::to_string(steps) + " ")) ADD_FAILURE() << line;
  }
  return steps;
}

void Program::expect_progress(std::uint64_t more) const {
  const UniqueFd changes(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  ::inotify_add_watch(changes.get(), output_.parent_path().c_str(), IN_MODIFY | IN_CREATE);
  const std::uint64_t wanted = steps() + more;
  const auto deadline = Clock::now() + kPatience;
  while (steps() < wanted) {
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
    pollfd watched{changes.get(), POLLIN, 0};
    if (left.count() <= 0 || ::poll(&watched, 1, static_cast<int>(left.count())) == 0) {
      std::ifstream in(output_);
      FAIL() << "the program does not run on, state " << procfs::state(std::to_string(pid_))
             << std::string(std::istreambuf_iterator<char>(in), {}).substr(0, 2000);
    }
    char events[4096];
    while (::read(changes.get(), events, sizeof(events)) > 0) {
    }
  }
}

void Program::expect_stillness(Milliseconds time) const {
  const std::uint64_t before = steps();
  ::poll(nullptr, 0, static_cast<int>(time.count()));
  EXPECT_EQ(steps(), before);
}

Worker::Worker(const std::vector<std::string>& arguments) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  std::vector<std::string> command{built(GCR_RECOVERY_WORKER)};
  command.insert(command.end(), arguments.begin(), arguments.end());
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    execute(command);
  }
  ::close(ends[1]);
  output_.reset(ends[0]);
}

bool Worker::read_line() {
  std::size_t end = 0;
  while ((end = buffered_.find('\n')) == std::string::npos) {
    char bytes[256];
    const ssize_t got = ::read(output_.get(), bytes, sizeof(bytes));
    if (got <= 0) return false;
    buffered_.append(bytes, static_cast<std::size_t>(got));
  }
  last_ = buffered_.substr(0, end);
  buffered_.erase(0, end + 1);
  std::istringstream words(last_);
  std::string word;
  words >> word;
  journal::ProcessId id;
  pid_t pid = 0;
  for (std::uint64_t start_time = 0; words >> pid >> start_time;) {
    id.set_pid(pid);
    id.set_start_time(start_time);
    named_.push_back(id);
  }
  return true;
}

std::optional<journal::ProcessId> Worker::keeper() const {
  if (named_.empty()) return std::nullopt;
  return named_.front();
}

bool Worker::wait_for(const std::string& word) {
  while (read_line()) {
    if (last_.starts_with(word)) return true;
  }
  return false;
}

void Worker::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  reap(pid_);
  pid_ = -1;
  while (read_line()) {
  }
}

void adopt_orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

std::set<pid_t> living_descendants(const std::set<pid_t>& children) {
  std::set<pid_t> living;
  for (const pid_t pid : procfs::tree(::getpid())) {
    if (pid == ::getpid()) continue;
    if (procfs::state(std::to_string(pid)) != 'Z') {
      living.insert(pid);
    } else if (!children.contains(pid)) {
      ::waitpid(pid, nullptr, WNOHANG);
    }
  }
  return living;
}

}  // namespace gcr::undo::test

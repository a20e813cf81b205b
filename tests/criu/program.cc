#include "tests/criu/program.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>

#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/unique_fd.h"

namespace gcr::criu::test {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kPatience{60};

}  // namespace

Directory::Directory() {
  std::string path = "/dev/shm/gcr-criu-test-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("cannot make " + path);
  path_ = path;
}

Directory::~Directory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

fs::path Directory::make(const std::string& name) const {
  fs::create_directories(path_ / name);
  return path_ / name;
}

Command criu_command() {
  const char* path = ::getenv("GCR_CRIU");
  return Command{{path != nullptr ? path : GCR_CRIU_PATH}, GCR_REAPER_PATH};
}

Output read_output(const fs::path& file) {
  Output output;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line) && !in.eof();) {
    ++output.lines;
    std::istringstream fields(line);
    int thread = 0;
    int number = 0;
    std::string word;
    if (line.starts_with("ready")) {
      fields >> word;
      for (pid_t tid = 0; fields >> tid;) output.tids.push_back(tid);
    } else if (fields >> thread >> number) {
      output.counts[thread].push_back(number);
    } else {
      output.others.push_back(line);
    }
  }
  return output;
}

Output wait_for_output(const fs::path& file, const std::function<bool(const Output&)>& condition) {
  const UniqueFd changes(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  ::inotify_add_watch(changes.get(), file.parent_path().c_str(), IN_MODIFY | IN_CREATE);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    Output output = read_output(file);
    if (condition(output)) return output;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd watched{changes.get(), POLLIN, 0};
    if (left.count() <= 0 || ::poll(&watched, 1, static_cast<int>(left.count())) == 0) {
      ADD_FAILURE() << "the program has written " << output.lines << " lines and no more";
      return output;
    }
    char events[4096];
    while (::read(changes.get(), events, sizeof(events)) > 0) {
    }
  }
}

Output wait_for_progress(const fs::path& file, const Output& before, int more) {
  return wait_for_output(file, [&](const Output& now) {
    if (now.tids.empty() || now.counts.empty()) return false;
    for (const auto& [thread, numbers] : now.counts) {
      const auto earlier = before.counts.find(thread);
      const std::size_t had = earlier == before.counts.end() ? 0 : earlier->second.size();
      if (numbers.size() < had + static_cast<std::size_t>(more)) return false;
    }
    return true;
  });
}

void expect_gapless(const Output& output) {
  EXPECT_FALSE(output.counts.empty());
  for (const auto& [thread, numbers] : output.counts) {
    for (std::size_t at = 0; at < numbers.size(); ++at) {
      ASSERT_EQ(numbers[at], static_cast<int>(at) + 1) << "thread " << thread;
    }
  }
  EXPECT_THAT(output.others, testing::IsEmpty());
}

Program::Program(const fs::path& file, const std::string& mode, int stdout_fd)
    : Program({GCR_COUNTING_PROGRAM, file.string(), mode}, stdout_fd) {}

Program::Program(const std::vector<std::string>& command, int stdout_fd) {
  std::vector<const char*> argv;
  for (const std::string& word : command) argv.push_back(word.c_str());
  argv.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::setsid();
  const int nothing = ::open("/dev/null", O_RDWR);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(stdout_fd >= 0 ? stdout_fd : nothing, STDOUT_FILENO);
  ::dup2(nothing, STDERR_FILENO);
  ::close_range(STDERR_FILENO + 1, ~0u, 0);
  ::execv(argv[0], const_cast<char* const*>(argv.data()));
  ::_exit(127);
}

Program::~Program() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  (void)reap();
}

int Program::reap() {
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return status;
}

char state_of(pid_t pid) { return procfs::state(std::to_string(pid)); }
bool exists(pid_t pid) { return state_of(pid) != '\0'; }

std::set<pid_t> all_processes() {
  const std::vector<pid_t> below = procfs::tree(::getpid());
  return {below.begin(), below.end()};
}

}  // namespace gcr::criu::test

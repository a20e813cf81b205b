#include "tests/preload/door/subject_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

namespace gcr::test {
namespace {

void prepare_child(const Subject::Options& options) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // A real driver is in the system's search path.
  if (std::getenv("GCR_TEST_REAL_GPU") == nullptr) {
    ::setenv("LD_LIBRARY_PATH", GCR_SOFTGPU_DIRECTORY ":" GCR_SOFTGPU_DIRECTORY "/hip", 1);
  }
  if (options.preload) ::setenv("LD_PRELOAD", GCR_PRELOAD_LIBRARY, 1);
  for (const auto& [name, value] : options.environment) ::setenv(name.c_str(), value.c_str(), 1);
  if (options.new_pid_namespace) {
    // The driver looks itself up in /proc.
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("proc", "/proc", "proc", 0, nullptr) != 0) {
      ::_exit(126);
    }
  }
  if (options.descriptor_limit != 0) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = options.descriptor_limit;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

}  // namespace

Subject::Subject(const Options& options) {
  int in[2], out[2];
  if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) std::abort();
  const unsigned long flags = SIGCHLD | (options.new_pid_namespace ? CLONE_NEWPID : 0);
  pid_ = static_cast<pid_t>(::syscall(SYS_clone, flags, nullptr, nullptr, nullptr, nullptr));
  if (pid_ == 0) {
    prepare_child(options);
    ::dup2(in[0], STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::execl(GCR_SUBJECT, GCR_SUBJECT, nullptr);
    ::_exit(127);
  }
  ::close(in[0]);
  ::close(out[1]);
  in_.reset(in[1]);
  out_.reset(out[0]);
}

Subject::~Subject() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Subject::send(const std::string& command) {
  const std::string line = command + "\n";
  if (::write(in_.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    ADD_FAILURE() << "the subject is gone before: " << command;
  }
}

std::string Subject::receive() {
  std::string line;
  for (char next = 0; ::read(out_.get(), &next, 1) == 1;) {
    if (next == '\n') return line;
    line += next;
  }
  ADD_FAILURE() << "the subject ended";
  return line;
}

std::string Subject::answer(const std::string& command) {
  send(command);
  return receive();
}

std::vector<std::uint64_t> Subject::ask(const std::string& command) {
  std::istringstream words(answer(command));
  std::string word;
  words >> word;
  std::vector<std::uint64_t> values;
  if (word != "ok") {
    ADD_FAILURE() << command << ": " << words.str();
    return values;
  }
  while (words >> word) values.push_back(std::strtoull(word.c_str(), nullptr, 0));
  return values;
}

std::uint64_t Subject::value(const std::string& command) {
  const auto values = ask(command);
  return values.empty() ? 0 : values.front();
}

}  // namespace gcr::test

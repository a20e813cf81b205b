#include "tests/src/cli/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>
#include <utility>

namespace gcr::cli::test {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

pid_t start(const std::vector<std::string>& words, const std::vector<std::string>& environment,
            int out, int err) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, words[0].c_str(), &actions, nullptr, pointers(words).data(),
                                pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " + words[0]);
  return pid;
}

}  // namespace

Running::Running(const std::vector<std::string>& words,
                 const std::vector<std::string>& environment) {
  int out[2];
  int err[2];
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) {
    throw std::runtime_error("no pipe");
  }
  UniqueFd out_read(out[0]), out_write(out[1]), err_read(err[0]), err_write(err[1]);
  pid_ = start(words, environment, out[1], err[1]);
  out_ = std::thread([this, fd = std::move(out_read)] { read(fd, so_far_.out); });
  err_ = std::thread([this, fd = std::move(err_read)] { read(fd, so_far_.err); });
}

Running::~Running() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  finish();
}

void Running::read(const UniqueFd& fd, std::string& text) {
  char buffer[4096];
  for (ssize_t count = 0; (count = ::read(fd.get(), buffer, sizeof(buffer))) > 0;) {
    const std::lock_guard lock(mutex_);
    text.append(buffer, static_cast<std::size_t>(count));
    changed_.notify_all();
  }
  const std::lock_guard lock(mutex_);
  --open_outputs_;
  changed_.notify_all();
}

bool Running::wait_for_output(const std::string& text) {
  std::unique_lock lock(mutex_);
  const auto is_there = [&] { return so_far_.out.find(text) != std::string::npos; };
  changed_.wait(lock, [&] { return is_there() || open_outputs_ == 0; });
  return is_there();
}

void Running::signal(int number) const { ::kill(pid_, number); }

Finished Running::finish() {
  out_.join();
  err_.join();
  int status = 0;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  so_far_.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return so_far_;
}

Finished run(const std::vector<std::string>& words, const std::vector<std::string>& environment) {
  return Running(words, environment).finish();
}

Finished run_cli(const std::vector<std::string>& arguments) {
  return run(cli_words(arguments), cli_environment());
}

std::vector<std::string> cli_words(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {GCR_CLI};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

std::vector<std::string> cli_environment() { return {"PATH=/usr/bin:/bin"}; }

}  // namespace gcr::cli::test

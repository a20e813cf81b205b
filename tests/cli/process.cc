#include "tests/cli/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <thread>

#include "src/base/unique_fd.h"

namespace gcr::cli::test {
namespace {

std::string read_all(const UniqueFd& fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::read(fd.get(), buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  return text;
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

}  // namespace

Finished run(const std::vector<std::string>& words, const std::vector<std::string>& environment) {
  int out[2];
  int err[2];
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) {
    throw std::runtime_error("no pipe");
  }
  UniqueFd out_read(out[0]), out_write(out[1]), err_read(err[0]), err_write(err[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, words[0].c_str(), &actions, nullptr, pointers(words).data(),
                                pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " + words[0]);
  out_write.reset();
  err_write.reset();
  Finished finished;
  std::thread errors([&] { finished.err = read_all(err_read); });
  finished.out = read_all(out_read);
  errors.join();
  int status = 0;
  ::waitpid(pid, &status, 0);
  finished.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return finished;
}

Finished run_cli(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {GCR_CLI};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run(words, {"PATH=/usr/bin:/bin"});
}

}  // namespace gcr::cli::test

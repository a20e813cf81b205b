// Runs gcr-migrate, with an environment of the test's choice.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "src/base/unique_fd.h"

namespace gcr::cli::test {

struct Finished {
  int exit_status = -1;  ///< or 128 and the signal
  std::string out;
  std::string err;
};

/// A command that runs concurrently with the test. Killed at its end unless it has ended.
class Running {
 public:
  /// Starts `words` with the variables of `environment` ("NAME=value") and no others.
  Running(const std::vector<std::string>& words, const std::vector<std::string>& environment);
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  /// Returns once standard output contains `text`; false if it ends without it.
  bool wait_for_output(const std::string& text);
  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Waits for its end.
  Finished finish();

 private:
  void read(const UniqueFd& fd, std::string& text);

  pid_t pid_ = -1;
  Finished so_far_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int open_outputs_ = 2;
  std::thread out_;
  std::thread err_;
};

/// Runs `words` to its end.
Finished run(const std::vector<std::string>& words, const std::vector<std::string>& environment);

/// gcr-migrate with these arguments and an empty environment except for PATH.
Finished run_cli(const std::vector<std::string>& arguments);

/// The arguments and the environment of such a command.
std::vector<std::string> cli_words(const std::vector<std::string>& arguments);
std::vector<std::string> cli_environment();

}  // namespace gcr::cli::test

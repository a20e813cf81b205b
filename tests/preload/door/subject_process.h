// A running subject program, with or without the preload library.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "src/base/unique_fd.h"

namespace gcr::test {

/// Killed and reaped when destroyed.
class Subject {
 public:
  struct Options {
    bool preload = true;
    std::map<std::string, std::string> environment;
    unsigned long descriptor_limit = 0;  ///< soft RLIMIT_NOFILE, 0: unchanged
    bool new_pid_namespace = false;      ///< as init of a PID namespace of its own
  };

  Subject() : Subject(Options()) {}
  explicit Subject(const Options& options);
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;
  ~Subject();

  pid_t pid() const { return pid_; }

  /// Sends a command; returns the values of its "ok". Anything else fails the test and returns no
  /// values.
  std::vector<std::uint64_t> ask(const std::string& command);
  /// The first value, 0 if there is none.
  std::uint64_t value(const std::string& command);
  /// The whole answer, success or error.
  std::string answer(const std::string& command);

  /// The two halves of answer(), for commands that do not return at once.
  void send(const std::string& command);
  std::string receive();

 private:
  pid_t pid_ = -1;
  UniqueFd in_;
  UniqueFd out_;
};

}  // namespace gcr::test

// Programs that a test starts: run to their end with a time limit, or kept running and reaped.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/base/unique_fd.h"

namespace gcr::e2e {

using Milliseconds = std::chrono::milliseconds;

/// A command that takes longer hangs, however slow the machine is.
inline constexpr Milliseconds kHangs{600'000};

struct CommandResult {
  int exit_code =
      -1;  ///< 128 + signal if a signal ended it, -1 if it was killed for its time limit
  std::string out;
  std::string err;
};

/// The descriptors of a spawned program's streams; -1 means /dev/null.
struct Streams {
  int in = -1;
  int out = -1;
  int err = -1;
};

/// A program in a session of its own. Reaped by a thread as soon as it ends, so that its PID is
/// free again; killed and reaped by the destructor at the latest.
class Program {
 public:
  /// Throws std::runtime_error if it cannot be started. Streams are duplicated, not taken over.
  Program(const std::vector<std::string>& argv, const Streams& streams);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }

  /// True while it has not ended.
  bool running() const;

  /// Waits for its end; false if `timeout` comes first.
  bool wait(Milliseconds timeout) const;

  /// As in CommandResult, after its end.
  int exit_code() const;

  void signal(int number) const;

 private:
  struct Reaper;
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  std::unique_ptr<Reaper> reaper_;
};

/// Runs to the end and returns the output.
CommandResult run(const std::vector<std::string>& argv, Milliseconds timeout);

/// A running program whose output goes to files: start now, collect later. The files are removed
/// with the object.
class BackgroundCommand {
 public:
  explicit BackgroundCommand(const std::vector<std::string>& argv);
  ~BackgroundCommand();
  BackgroundCommand(const BackgroundCommand&) = delete;
  BackgroundCommand& operator=(const BackgroundCommand&) = delete;

  Program& program() { return *program_; }
  std::string out_so_far() const;
  std::string err_so_far() const;
  CommandResult finish(Milliseconds timeout);

  /// Waits until the output so far (both streams) satisfies `predicate`; false if the program
  /// ended, or `timeout` passed, before.
  bool wait_for_output(const std::function<bool(const std::string&)>& predicate,
                       Milliseconds timeout) const;

 private:
  std::string out_path_;
  std::string err_path_;
  UniqueFd out_;
  UniqueFd err_;
  std::unique_ptr<Program> program_;
};

/// The whole content of the file.
std::string read_file(const std::string& path);

/// Waits until the file, which may not exist yet, satisfies `predicate`; checks again after each
/// write in its directory.
bool wait_for_content(const std::string& path,
                      const std::function<bool(const std::string&)>& predicate,
                      Milliseconds timeout);

}  // namespace gcr::e2e

// A program that uses a GPU, and a worker that takes it apart until it is killed.
//
// GCR_TEST_BIN names a folder that has the programs and libraries, where the build's is not there.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "proto/journal.pb.h"
#include "src/base/unique_fd.h"

namespace gcr::undo::test {

using Milliseconds = std::chrono::milliseconds;

journal::ProcessId identify(pid_t pid);

/// The path of a program or library of this build or, if GCR_TEST_BIN is set, of that folder.
std::filesystem::path built(const std::filesystem::path& path);

/// The path of CRIU: GCR_CRIU if that is set, else the build's.
std::string criu_program();

/// A directory under /dev/shm, removed at the end.
class Directory {
 public:
  Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Runs the program scribbler, which checks all of its VRAM in every step, ends at the first wrong
/// word, and writes the numbers of its steps to a file. Killed and reaped at the end.
class Program {
 public:
  struct Options {
    bool preload = true;
    std::string vram = "32M";
  };
  Program(const std::filesystem::path& directory, const Options& options);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();

  pid_t pid() const { return pid_; }
  journal::ProcessId id() const { return identify(pid_); }
  /// The numbers of the reported steps; a test failure unless they are 0, 1, 2...
  std::uint64_t steps() const;
  /// Waits until the program has done `more` further steps; otherwise a test failure.
  void expect_progress(std::uint64_t more = 3) const;
  /// A test failure if the program does a step in this time.
  void expect_stillness(Milliseconds time) const;
  /// Ends the program.
  void kill();

 private:
  pid_t pid_ = -1;
  std::filesystem::path output_;
};

/// Runs recovery_worker. Killed and reaped at the end.
class Worker {
 public:
  explicit Worker(const std::vector<std::string>& arguments);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() { kill(); }

  /// Waits for the line that begins with `word`. False if the worker ends without it.
  bool wait_for(const std::string& word);
  /// Sends SIGKILL, and keeps the lines that it had printed.
  void kill();
  /// The processes in a line "keeper PID START" or "restored PID START PID START".
  const std::vector<journal::ProcessId>& named() const { return named_; }
  std::optional<journal::ProcessId> keeper() const;
  const std::string& last() const { return last_; }

 private:
  bool read_line();

  pid_t pid_ = -1;
  UniqueFd output_;
  std::string buffered_;
  std::string last_;
  std::vector<journal::ProcessId> named_;
};

/// Makes this process the reaper of orphans, so that they can be counted. Once, in main().
void adopt_orphans();

/// Every process below this one except zombies, which are reaped unless they are in `children`.
std::set<pid_t> living_descendants(const std::set<pid_t>& children);

}  // namespace gcr::undo::test

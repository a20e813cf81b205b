// What the CRIU tests share: the program under test, its output, and a directory on tmpfs.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "migrate-agent/criu/runs/criu.h"
#include "tests/criu/whole_runs.h"

namespace gcr::criu::test {

/// A directory under /dev/shm, removed at the end.
class Directory {
 public:
  Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory();
  const std::filesystem::path& path() const { return path_; }
  /// A new directory below.
  std::filesystem::path make(const std::string& name) const;

 private:
  std::filesystem::path path_;
};

/// CRIU from the environment (GCR_CRIU), else the one that the build knows, and
/// build/bin/gcr-reaper.
Command criu_command();

/// The content of the program's file.
struct Output {
  std::vector<pid_t> tids;                 ///< from its "ready" line
  std::map<int, std::vector<int>> counts;  ///< by thread
  std::vector<std::string> others;         ///< lines of other forms
  std::size_t lines = 0;
};
Output read_output(const std::filesystem::path& file);

/// Waits until `condition` holds for the file's content, checking after each change of the file. A
/// test failure after 30 seconds.
Output wait_for_output(const std::filesystem::path& file,
                       const std::function<bool(const Output&)>& condition);

/// Waits until every counting thread has written `more` lines beyond those in `before`.
Output wait_for_progress(const std::filesystem::path& file, const Output& before, int more);

/// Every thread's numbers are 1, 2, 3... without gap or repeat.
void expect_gapless(const Output& output);

/// The program, started with standard streams on /dev/null in a session of its own; killed and
/// reaped at the end if it still runs.
class Program {
 public:
  /// `stdout_fd`: its standard output, -1 for /dev/null.
  Program(const std::filesystem::path& file, const std::string& mode, int stdout_fd = -1);
  /// Any other command.
  explicit Program(const std::vector<std::string>& command, int stdout_fd = -1);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();

  pid_t pid() const { return pid_; }
  procfs::Process process() const { return procfs::Process::open(pid_).value(); }
  /// Reaps it; returns the wait status.
  int reap();

 private:
  pid_t pid_ = -1;
};

/// 'T', 'S', ...; 0 if it has ended.
char state_of(pid_t pid);
bool exists(pid_t pid);

/// Every process below this one: a test leaves the same ones that it found.
std::set<pid_t> all_processes();

}  // namespace gcr::criu::test

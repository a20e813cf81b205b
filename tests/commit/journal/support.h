// What the tests of journals share: a state_dir of their own, records, children, and the bytes of
// files.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "migrate-agent/commit/journal/journal.h"
#include "tests/support/threads.h"

namespace gcr::journal::test {

/// A new directory, removed with everything in it.
class StateDir {
 public:
  explicit StateDir(const std::filesystem::path& parent = std::filesystem::temp_directory_path());
  StateDir(const StateDir&) = delete;
  StateDir& operator=(const StateDir&) = delete;
  ~StateDir();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// A Began as a source writes it.
Began source_began();

Record keeper_started(int pid);
Record committed();
Record aborted(const std::string& message);
Record finished();

/// A new source's journal in `state_dir`; throws if it cannot be made.
Journal begin(const std::filesystem::path& state_dir, const Uuid& migration = Uuid::random(),
              const std::string& ordered_by = "operator");

std::vector<std::byte> bytes_of(const std::filesystem::path& file);
void write_bytes(const std::filesystem::path& file, std::span<const std::byte> bytes);

/// Runs `body` in a child, with its EXPECTs; fails the test if one of them failed.
void in_child(const std::function<void()>& body);

/// The child's id; it runs `body` and then waits to be killed.
pid_t start_child(const std::function<void()>& body);
void kill_and_reap(pid_t child);

using gcr::test::wait_until_in;

}  // namespace gcr::journal::test

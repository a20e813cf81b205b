// A disk that fails, or a process that is killed, at a chosen call. The calls that change a
// directory of checkpoints are counted; one of them has an end of its own.
#pragma once

#include <atomic>
#include <functional>

namespace gcr::store::test {

enum class Fault { kNone, kKill, kFullDisk, kIoError };

/// How a child ended.
struct Ended {
  bool killed = false;
  bool succeeded = false;  ///< what the child's work returned
  int calls = 0;           ///< that were counted
};

/// Runs `work` in a child; its call number `at`, from 0, meets `fault`, and with kFullDisk and
/// kIoError every later write and sync too. What one thread of the child does alone comes in the
/// same order each time.
Ended run_with_fault(int at, Fault fault, const std::function<bool()>& work);

}  // namespace gcr::store::test

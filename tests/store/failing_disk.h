// A disk that fails, or a process that is killed, at a chosen call. The calls that change a
// directory of checkpoints are counted; one of them gets the fault.
#pragma once

#include <atomic>
#include <functional>

namespace gcr::store::test {

enum class Fault { kNone, kKill, kFullDisk, kIoError };

/// How a child ended.
struct Ended {
  bool killed = false;
  bool succeeded = false;  ///< the return value of the child's work
  int calls = 0;           ///< the counted ones
};

/// Runs `work` in a child; its call number `at`, from 0, gets `fault`, and with kFullDisk and
/// kIoError every later write and sync too. A single-threaded child makes its calls in the same
/// order each time.
Ended run_with_fault(int at, Fault fault, const std::function<bool()>& work);

}  // namespace gcr::store::test

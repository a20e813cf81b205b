// The driver's checkpoint API, applied to another process: it moves control state. The states are
// the driver's own: RUNNING -lock-> LOCKED -checkpoint-> CHECKPOINTED -restore-> LOCKED -unlock->
// RUNNING. Calls block and are never timed out from outside: a process that is interrupted inside
// one is lost. PIDs are as the caller's PID namespace sees them.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <vector>

#include "migrate-agent/mover/cuda_driver.h"

namespace gcr::mover {

/// Where a GPU's contents go: `from` at the source becomes `to` at the destination.
struct GpuPair {
  Uuid from;
  Uuid to;
};

class ControlCheckpoint {
 public:
  /// Zero is never used.
  enum class State {
    kInvalid = 0,
    kRunning,
    kLocked,
    kCheckpointed,
    kFailed,  ///< the driver could not restore it, and never can
  };

  ControlCheckpoint(std::shared_ptr<const CudaDriver> driver, pid_t pid)
      : driver_(std::move(driver)), pid_(pid) {}

  /// The process's state by the driver. Changes nothing.
  Result<State> state() const;

  /// Stops further CUDA calls and waits for submitted work. On failure the process runs on.
  Status lock(std::chrono::milliseconds timeout) const;

  /// Moves the control state into host memory. On failure the process stays locked.
  Status checkpoint() const;

  /// Restores it. `pairs` empty: onto the same GPUs; else they name every GPU of the source
  /// machine. On failure the process stays checkpointed, and another call may succeed.
  Status restore(const std::vector<GpuPair>& pairs) const;

  Status unlock() const;

  /// The id of the thread that has to run during restore(), from the driver. Ask while the process
  /// runs: a stopped one does not answer.
  Result<pid_t> restore_thread() const;

 private:
  std::shared_ptr<const CudaDriver> driver_;
  pid_t pid_;
};

}  // namespace gcr::mover

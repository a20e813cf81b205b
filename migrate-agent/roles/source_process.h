// The process at the source: every step that takes something from it, and the way back from each.
//
//   running -close_gate-> gated -detach-> detached -lock-> locked -checkpoint-> checkpointed
//   -dump-> dumped
//
// roll_back() leads from any of them to running. Methods block and belong to one thread at a time.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "migrate-agent/criu/criu.h"
#include "migrate-agent/door/door.h"
#include "migrate-agent/mover/contexts.h"
#include "migrate-agent/mover/control_checkpoint.h"

namespace gcr::agent {

class SourceProcess {
 public:
  /// How far the process has been taken apart. Zero is never used.
  enum class State { kInvalid = 0, kRunning, kGated, kDetached, kLocked, kCheckpointed, kDumped };

  SourceProcess(std::shared_ptr<const mover::CudaDriver> driver, pid_t pid, Door door)
      : pid_(pid), door_(std::move(door)), control_(std::move(driver), pid) {}

  Door& door() { return door_; }
  pid_t pid() const { return pid_; }
  State state() const { return state_; }

  /// Holds back the application's calls and drains the GPU.
  Status close_gate(std::chrono::milliseconds timeout);

  /// The way back from there alone.
  Status open_gate();

  /// The application lets go of its VRAM; from here on only the mover holds it.
  Status detach();

  /// The driver holds back further calls and waits for submitted work.
  Status lock(std::chrono::milliseconds timeout);

  /// The driver moves control state into host memory.
  Status checkpoint();

  /// CRIU's images go where `prepared` and `take` say; the tasks stay stopped.
  Result<criu::DumpReport> dump(criu::PreparedDump& prepared, const criu::TakeImage& take);

  /// Undoes all of the above, in reverse; `vram` maps the application's VRAM again where it was
  /// detached. An error says which step failed and what state the process is in then.
  Status roll_back(mover::Descriptors vram);

  /// After the commit: the dumped process is gone for good.
  Status kill();

 private:
  pid_t pid_;
  Door door_;
  mover::ControlCheckpoint control_;
  State state_ = State::kRunning;
};

}  // namespace gcr::agent

// The process at the destination, between CRIU's restore and the commit: it stands still, its CUDA
// state and its VRAM are back, and nothing but the commit is missing (design decision 9).
//
// Belongs to one thread (ptrace does): create, commit and destroy it on WorkerContext::tracer.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "migrate-agent/criu/criu.h"
#include "migrate-agent/criu/frozen_threads.h"
#include "migrate-agent/door/door.h"
#include "migrate-agent/mover/control_checkpoint.h"
#include "migrate-agent/mover/mover.h"
#include "migrate-agent/roles/phases.h"

namespace gcr::agent {

class RestoredProcess {
 public:
  struct Plan {
    std::shared_ptr<const mover::CudaDriver> driver;
    criu::Command criu;
    std::filesystem::path reaper;
    std::filesystem::path images;
    pid_t door_tid = 0;  ///< the preload library's thread, in the process's own PID namespace
    std::vector<mover::GpuPair> gpu_map;
  };

  /// Restores, lets only the CUDA restore thread and the door's thread run, restores and unlocks
  /// CUDA, attaches VRAM. On failure nothing of the process is left.
  static Result<RestoredProcess> create(const Plan& plan, mover::Descriptors vram, Phases& phases);

  /// Opens the gate, lets every thread go and leaves the process behind for good. Returns its PID.
  Result<pid_t> commit();

 private:
  RestoredProcess(criu::RestoredTree tree, criu::FrozenThreads frozen, Door door)
      : tree_(std::move(tree)), frozen_(std::move(frozen)), door_(std::move(door)) {}

  // The order matters: without a commit the threads are let go first and the tree is killed last;
  // the closed gate holds them back meanwhile.
  criu::RestoredTree tree_;
  criu::FrozenThreads frozen_;
  Door door_;
};

}  // namespace gcr::agent

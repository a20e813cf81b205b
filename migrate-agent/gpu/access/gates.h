// The gates of a job's members, which close together or not at all.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "migrate-agent/gpu/access/gpu_access.h"

namespace gcr::gpu {

/// What holds back GPU calls. Methods block; one thread at a time.
class Gate {
 public:
  using Milliseconds = std::chrono::milliseconds;

  virtual ~Gate() = default;

  /// Holds the calls back and waits until the GPUs are idle. kTimeout says what prevented it; the
  /// calls then pass again. They pass by themselves `lease` after the last request (0: never),
  /// unless the process is detached.
  virtual Status quiesce(Milliseconds timeout, Milliseconds lease) = 0;

  /// Lets the calls pass. The process must be attached.
  virtual Status resume() = 0;
};

/// Members may wait for each other on their GPUs, as the kernels of a collective do. If one
/// member's gate closes before its all-reduce, while another's kernel is in flight already, that
/// kernel never ends. So idle members with a held call may make it, one call after the other, until
/// no GPU waits any more: at the latest where the member that is furthest ahead already was.
class Gates : public Gate {
 public:
  struct Member {
    pid_t pid;
    GpuAccess* access;  ///< outlives this
  };
  /// Is told what the closing waits for, as a sentence; called by the thread that closes.
  using Watch = std::function<void(const std::string&)>;

  explicit Gates(std::vector<Member> members) : members_(std::move(members)) {}

  void set_watch(Watch watch) { watch_ = std::move(watch); }

  /// On failure all are open again, and the error names the member whose GPU or calls did not end.
  Status quiesce(Milliseconds timeout, Milliseconds lease) override;

  /// All of them, whether one fails or not; the first error.
  Status resume() override;

 private:
  std::vector<Member> members_;
  Watch watch_;
};

}  // namespace gcr::gpu

// The gates of a job's members, which close together or not at all.
#pragma once

#include <sys/types.h>

#include <vector>

#include "migrate-agent/gpu_access/gpu_access.h"

namespace gcr::agent {

class Gates : public Gate {
 public:
  struct Member {
    pid_t pid;
    Gate* gate;  ///< outlives this
  };

  explicit Gates(std::vector<Member> members) : members_(std::move(members)) {}

  /// All at the same time. On failure those that had closed are open again, and the error says
  /// whose did not.
  Status quiesce(Milliseconds timeout, Milliseconds lease) override;

  /// All of them, whether one fails or not; the first error.
  Status resume() override;

 private:
  std::vector<Member> members_;
};

}  // namespace gcr::agent

// The process at the destination, between CRIU's restore and the vote: it stands still, its CUDA
// state and its VRAM come back (design decision 9). From the vote on it stands still by itself, and
// nothing but a thaw and SIGCONT is missing: migrate-agent/recovery has what then becomes of it.
// One caller at a time, from any thread; everything blocks.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "migrate-agent/cgroups/group.h"
#include "migrate-agent/criu/criu.h"
#include "migrate-agent/criu/frozen_threads.h"
#include "migrate-agent/device/device.h"
#include "migrate-agent/door/door.h"
#include "migrate-agent/mover/chunk.h"
#include "migrate-agent/process/named_files.h"
#include "migrate-agent/roles/phases.h"
#include "proto/journal.pb.h"

namespace gcr::agent {

class RestoredProcess {
 public:
  /// What it must be.
  struct Expected {
    const google::protobuf::RepeatedPtrField<proto::Credentials>& credentials;
    const process::VettedFiles& files;
  };

  /// Restores, and before anything runs compares the rights of all threads and the files with what
  /// is expected. Lets only the threads in `running` run (those that CUDA and the preload library
  /// need, as the process's own PID namespace numbers them), restores and unlocks CUDA. `group` is
  /// the one that `restore` makes it in. On failure nothing of the process is left.
  static Result<std::unique_ptr<RestoredProcess>> create(
      const std::shared_ptr<const device::Driver>& driver, criu::PreparedRestore& restore,
      const Expected& expected, const std::set<pid_t>& running,
      const std::vector<device::GpuPair>& gpu_map, cgroups::Group group, Phases& phases);

  /// Maps the VRAM behind the descriptors where the process had it.
  Status attach(mover::Descriptors vram, Phases& phases);

  /// Opens the gate, which nobody can pass, stops the process as a whole and freezes its group: the
  /// last thread that ran stands still too, and from here on only root makes it go on.
  Status stand_still(Phases& phases);

  /// What the journal says of it: the process and the init of its namespace.
  journal::Restored identity() const;

  /// After stand_still(), and once the journal knows of it: it no longer depends on this process.
  void leave();

  /// Unless it was left, kills the tree before its threads are let go: none of them runs again.
  ~RestoredProcess();
  RestoredProcess(const RestoredProcess&) = delete;
  RestoredProcess& operator=(const RestoredProcess&) = delete;

 private:
  RestoredProcess(criu::RestoredTree tree, cgroups::Group group)
      : tree_(std::move(tree)), group_(std::move(group)) {}

  Status hold();

  criu::RestoredTree tree_;
  cgroups::Group group_;
  std::optional<criu::FrozenThreads> frozen_;
  std::optional<Door> door_;
  bool left_ = false;
};

}  // namespace gcr::agent

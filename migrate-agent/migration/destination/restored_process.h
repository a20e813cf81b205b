// The processes of a job at the destination, between CRIU's restore and the vote: it is stopped
// while its CUDA state and its VRAM are restored (design decision 9). From the vote on it stays
// stopped without this worker, and a thaw and SIGCONT are all that it needs: see
// migrate-agent/migration/undo. One caller at a time, from any thread; everything blocks.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/criu/sockets/connections.h"
#include "migrate-agent/gpu/access/gpu_access.h"
#include "migrate-agent/gpu/allocations/allocations.h"
#include "migrate-agent/gpu/device/device.h"
#include "migrate-agent/linux/cgroups/group.h"
#include "migrate-agent/linux/ptrace/frozen_threads.h"
#include "migrate-agent/process/inspect/named_files.h"
#include "migrate-agent/transfer/images/store.h"
#include "migrate-agent/worker/runtime/phases.h"
#include "proto/journal.pb.h"

namespace gcr::migration {

/// A member that uses GPUs, as the source describes it.
struct ExpectedGpuUser {
  pid_t pid_in_namespace = 0;
  bool driver_alone = false;  ///< it is not under the preload library
};

/// As the preflight numbers them.
using ExpectedGpuUsers = std::map<gpu::MemberId, ExpectedGpuUser>;

class RestoredProcess {
 public:
  /// What it must be.
  struct Expected {
    const process::DumpedMembers& members;
    const std::vector<process::VettedFiles>& files;  ///< of each member
    const criu::AdaptedSockets& sockets;             ///< of all members
    /// Those that use GPUs.
    const ExpectedGpuUsers& gpu_users;
  };

  /// Restores the processes, none of which runs, and compares the rights of all threads and the
  /// files with `expected`. `memories` are the images of memory that is in place. `group` is the
  /// one that `restore` restores into. On failure nothing of the process is left.
  static Result<std::unique_ptr<RestoredProcess>> create(
      const std::shared_ptr<const device::Driver>& driver, criu::PreparedRestore& restore,
      const images::ImageStore::Memories& memories, const Expected& expected, cgroups::Group group,
      worker::Phases& phases);

  /// Lets only the threads in `running` run (those that CUDA and the preload library need, by
  /// thread id in the process's own PID namespace), and restores and unlocks CUDA.
  Status restore_control(const std::set<pid_t>& running,
                         const std::vector<device::GpuPair>& gpu_map, worker::Phases& phases);

  /// Maps the VRAM behind the descriptors where the members had it. `let_go`: see mover/give.h; any
  /// thread, several at once.
  Status attach(gpu::MemberDescriptors vram, const std::shared_ptr<const device::Driver>& driver,
                const std::function<void()>& let_go, worker::Phases& phases);

  /// After restore_control(), opens the gates, which no thread can pass yet. Stops all members and
  /// freezes their group: from here on no thread of them runs, and only root can let them run.
  Status stand_still(worker::Phases& phases);

  /// After stand_still(): gives the members what they had set for themselves, and says what this
  /// host refuses. They stand still afterwards.
  Result<std::vector<std::string>> apply_settings(const process::DumpedMembers& members,
                                                  worker::Phases& phases);

  /// For the journal: all of them, and the init of their namespace.
  journal::Restored identity() const;

  /// After stand_still(), once identity() is in the journal: it no longer depends on this worker.
  void leave();

  /// Unless leave() was called, kills the process before its threads are released: none runs again.
  ~RestoredProcess();
  RestoredProcess(const RestoredProcess&) = delete;
  RestoredProcess& operator=(const RestoredProcess&) = delete;

 private:
  RestoredProcess(criu::RestoredTree tree, cgroups::Group group)
      : tree_(std::move(tree)), group_(std::move(group)) {}

  Status hold();
  Status find_members(const process::DumpedMembers& members);
  Status find_gpu_users(const device::Driver& driver, const Expected& expected);
  Status check_files(const std::vector<process::VettedFiles>& files) const;
  Status end_connections(const criu::AdaptedSockets& sockets) const;

  criu::RestoredTree tree_;
  std::vector<procfs::Process> members_;  ///< in the source's order
  cgroups::Group group_;
  std::optional<tracing::FrozenThreads> frozen_;
  struct GpuUser {
    gpu::MemberId id;
    pid_t pid;
    std::unique_ptr<device::Control> control;
    std::unique_ptr<gpu::GpuAccess> access{};  ///< none yet for one under the preload library
  };
  std::vector<GpuUser> gpu_users_;
  bool left_ = false;
};

}  // namespace gcr::migration

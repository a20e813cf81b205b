// The processes of a job at the destination, between CRIU's restore and the vote. They are stopped
// while their CUDA state and VRAM are restored (design decision 9). From the vote on they stay
// stopped without this worker; a thaw and SIGCONT resume them (migrate-agent/migration/undo). One
// caller at a time, from any thread; all methods block.
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
  bool driver_alone = false;  ///< it has no preload library
};

/// The members that use GPUs, by the index that preflight gave them.
using ExpectedGpuUsers = std::map<gpu::MemberId, ExpectedGpuUser>;

class RestoredProcess {
 public:
  /// What the restored processes are compared with.
  struct Expected {
    const process::DumpedMembers& members;
    const std::vector<process::VettedFiles>& files;  ///< files of each member
    const criu::AdaptedSockets& sockets;             ///< sockets of all members
    /// The members that use GPUs.
    const ExpectedGpuUsers& gpu_users;
  };

  /// Restores the processes, none of which runs, and compares the rights of all threads and the
  /// files with `expected`. `memories` are the images of memory that is already in place. `group`
  /// is the one that `restore` restores into. `phases` outlives the object. On failure nothing of
  /// the processes remains.
  static Result<std::unique_ptr<RestoredProcess>> create(
      const std::shared_ptr<const device::Driver>& driver, criu::PreparedRestore& restore,
      const images::ImageStore::Memories& memories, const Expected& expected, cgroups::Group group,
      worker::Phases& phases);

  /// Lets only the threads in `running` run (those that CUDA and the preload library need, by
  /// thread id in the process's own PID namespace), and restores and unlocks CUDA.
  Status restore_control(const std::set<pid_t>& running,
                         const std::vector<device::GpuPair>& gpu_map);

  /// Maps the VRAM of the descriptors at the members' original addresses. `let_go`: see
  /// mover/give.h; it is called from any thread, also concurrently.
  Status attach(gpu::MemberDescriptors vram, const std::shared_ptr<const device::Driver>& driver,
                const std::function<void()>& let_go);

  /// After restore_control(): opens the gates, which no thread can pass yet, stops all members and
  /// freezes their group. Afterwards no thread of them runs, and only root can resume them.
  Status stop_and_freeze();

  /// After stop_and_freeze(): applies the settings that the members had made for themselves, and
  /// gives a note for each one that this host refuses. The members are frozen again afterwards.
  Result<std::vector<std::string>> apply_settings(const process::DumpedMembers& members);

  /// The identities of all members and of the init of their namespace, for the journal.
  journal::Restored identity() const;

  /// Makes the processes independent of this worker. Call it after stop_and_freeze(), once
  /// identity() is in the journal.
  void leave();

  /// Without leave(), kills the processes before it releases their threads: none runs again.
  ~RestoredProcess();
  RestoredProcess(const RestoredProcess&) = delete;
  RestoredProcess& operator=(const RestoredProcess&) = delete;

 private:
  RestoredProcess(criu::RestoredTree tree, cgroups::Group group, worker::Phases& phases)
      : tree_(std::move(tree)), group_(std::move(group)), phases_(phases) {}

  Status hold();
  Status find_members(const process::DumpedMembers& members);
  Status find_gpu_users(const device::Driver& driver, const Expected& expected);
  Status check_files(const std::vector<process::VettedFiles>& files) const;
  Status end_connections(const criu::AdaptedSockets& sockets) const;

  criu::RestoredTree tree_;
  std::vector<procfs::Process> members_;  ///< in the source's order
  cgroups::Group group_;
  worker::Phases& phases_;
  std::optional<tracing::FrozenThreads> frozen_;
  struct GpuUser {
    gpu::MemberId id;
    pid_t pid;
    std::unique_ptr<device::Control> control;
    std::unique_ptr<gpu::GpuAccess>
        access{};  ///< found by restore_control() for a member with the preload library
  };
  std::vector<GpuUser> gpu_users_;
  bool left_ = false;
};

}  // namespace gcr::migration

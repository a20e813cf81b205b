// The processes of a job at the source, and the steps that stop them and take their GPU state:
//
//   running -close_gate-> gated -detach-> detached -lock-> locked -checkpoint-> checkpointed
//   -dump-> dumped
//
// undo::bring_back() undoes these steps, from any state. Methods block; one thread at a time.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/gpu/access/gates.h"
#include "migrate-agent/linux/cgroups/group.h"
#include "migrate-agent/linux/procfs/process_handle.h"
#include "migrate-agent/migration/source/member.h"
#include "migrate-agent/process/memory_files/outgoing.h"

namespace gcr::migration {

/// The last check of the processes before CRIU touches any of them.
struct LastCheck {
  /// The check. If CRIU can freeze the processes, none runs during it; all do after its Error.
  std::function<Status()> check;
  /// Whether to repeat a failed check; called while the processes run. May wait for a while.
  std::function<bool(const Error&)> once_more;
};

class SourceJob {
 public:
  /// `members` outlive this; the first and all below it move. `group` has all from the dump on.
  SourceJob(Members& members, cgroups::Group group);

  const std::vector<Member*>& gpu_members() const { return gpu_members_; }
  /// The gate that throttles the application: the gates of the members under the preload library,
  /// which open by themselves if this agent dies.
  gpu::Gate& gate() { return throttled_; }
  pid_t pid() const { return root_.pid(); }  ///< the root's PID
  pid_t driver_alone() const;  ///< PID of the member without the preload library; 0: none
  const cgroups::Group& group() const { return group_; }

  /// Whether close_gate() was called, and open_gate() has not undone it.
  bool gated() const { return gated_; }
  /// Whether detach() was called, or a gate is the driver's lock: from then on the job does not
  /// resume by itself, and a stopped process may have been stopped by the dump.
  bool detaching() const { return detaching_; }
  /// Whether dump() or stop() has stopped the job.
  bool is_dumped() const { return dumped_; }
  /// Records that the job was stopped before: a dump that fails leaves it stopped.
  void set_stopped() { dumped_ = true; }

  /// Moves all processes into the group, where they keep running.
  Status enter_group();

  /// Holds back calls and drains the GPUs. `watch` receives the reason while it waits.
  Status close_gate(std::chrono::milliseconds timeout, gpu::Gates::Watch watch);

  /// Undoes close_gate(). Only in gated.
  Status open_gate();

  // Each of the next three acts on all members concurrently.

  /// Makes the application unmap its VRAM; afterwards only mover and keeper hold it.
  Status detach();

  /// Makes the driver hold back calls and wait for the GPUs, unless that was the gate.
  Status lock(std::chrono::milliseconds timeout);

  /// Makes the driver move control state into host memory.
  Status checkpoint();

  /// Stops and freezes all tasks without a dump.
  Status stop();

  /// Dumps as criu::PreparedDump::run() describes; the tasks stay stopped and frozen.
  Result<std::vector<process::ThreadRights>> dump(const LastCheck& last,
                                                  criu::PreparedDump& prepared,
                                                  const criu::TakeImage& take,
                                                  const memory_files::Renamed& renamed,
                                                  criu::SeparateMemory& memory);

 private:
  Status freeze_outside_vfork();
  Status check_in_time(bool by_criu, const LastCheck& last);
  Status thaw_stopped();

  procfs::Process root_;
  std::vector<Member*> gpu_members_;
  gpu::Gates gates_;      ///< gates of all GPU members
  gpu::Gates throttled_;  ///< gates of those under the preload library
  cgroups::Group group_;
  bool gated_ = false;
  bool detaching_ = false;
  bool dumped_ = false;
};

}  // namespace gcr::migration

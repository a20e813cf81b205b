// The processes of a job at the source, and the steps that take them apart:
//
//   running -close_gate-> gated -detach-> detached -lock-> locked -checkpoint-> checkpointed
//   -dump-> dumped
//
// recovery::bring_back() finds how far it has come, and leads back. Methods block and belong to one
// thread at a time.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/gpu/access/gates.h"
#include "migrate-agent/linux/cgroups/group.h"
#include "migrate-agent/linux/procfs/process_handle.h"
#include "migrate-agent/migration/source/member.h"
#include "migrate-agent/process/memory_files/outgoing.h"

namespace gcr::migration {

/// Before CRIU touches any of the processes.
struct LastLook {
  /// Where CRIU can freeze them, nothing of them runs then. After its Error they run again.
  std::function<Status()> look;
  /// Whether to look again after that Error; called while they run. May wait for a while.
  std::function<bool(const Error&)> once_more;
};

class SourceJob {
 public:
  /// `members` outlive this object; the first one and all below it move. `group` holds all of them
  /// from the dump on.
  SourceJob(Members& members, cgroups::Group group);

  const std::vector<Member*>& gpu_members() const { return gpu_members_; }
  /// By which the application is throttled: of the members under the preload library, whose gates
  /// open by themselves if this agent dies.
  gpu::Gate& gate() { return throttled_; }
  pid_t pid() const { return root_.pid(); }  ///< of the root
  pid_t driver_alone() const;                ///< the member without the preload library; 0: none
  const cgroups::Group& group() const { return group_; }

  /// Whether close_gate() was called, and not undone by open_gate().
  bool gated() const { return gated_; }
  /// Whether detach() was called, or a gate is the driver's lock: from then on it does not come
  /// back by itself, and a stop may be the dump's.
  bool detaching() const { return detaching_; }
  /// Whether dump() or stop() has stopped it.
  bool is_dumped() const { return dumped_; }
  /// It was stopped, by stop(), before this object was made: a dump that fails leaves it so.
  void set_stopped() { dumped_ = true; }

  /// Moves all of them into their group, where they keep running.
  Status enter_group();

  /// Holds back the application's calls and drains the GPUs. `watch` is told what it waits for.
  Status close_gate(std::chrono::milliseconds timeout, gpu::Gates::Watch watch);

  /// The way back from gated only.
  Status open_gate();

  // All members at the same time, in each of the next three.

  /// The application unmaps its VRAM; from here on only mover and keeper hold it.
  Status detach();

  /// The driver holds back further calls and waits for submitted work, unless that was the gate.
  Status lock(std::chrono::milliseconds timeout);

  /// The driver moves control state into host memory.
  Status checkpoint();

  /// Without a dump: stops all tasks, as a dump leaves them, and freezes them.
  Status stop();

  /// See criu::PreparedDump::run(); the tasks stay stopped, and frozen.
  Result<std::vector<process::ThreadRights>> dump(const LastLook& last,
                                                  criu::PreparedDump& prepared,
                                                  const criu::TakeImage& take,
                                                  const memory_files::Renamed& renamed,
                                                  criu::SeparateMemory& memory);

 private:
  Status freeze_outside_vfork();
  Status look_in_time(bool by_criu, const LastLook& last);
  Status thaw_stopped();

  procfs::Process root_;
  std::vector<Member*> gpu_members_;
  gpu::Gates gates_;      ///< of all
  gpu::Gates throttled_;  ///< of those under the preload library
  cgroups::Group group_;
  bool gated_ = false;
  bool detaching_ = false;
  bool dumped_ = false;
};

}  // namespace gcr::migration

// Undoes, or completes, what a worker did to a job before it died or gave up. No record of how far
// the worker came is trusted: kernel, driver and processes are asked. Every function blocks, may be
// killed at any point, and may be called again; after a success that changes nothing. One caller at
// a time for one job.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "migrate-agent/gpu/access/gpu_access.h"
#include "migrate-agent/gpu/allocations/allocations.h"
#include "migrate-agent/gpu/device/device.h"
#include "migrate-agent/linux/cgroups/group.h"
#include "proto/journal.pb.h"
#include "src/base/result.h"

namespace gcr::undo {

/// A job at the source whose migration has to be undone, as the journal describes it.
struct Lost {
  std::vector<journal::ProcessId> members;  ///< at least one
  /// The process that holds the members' VRAM, if one was started.
  std::optional<journal::ProcessId> keeper;
  /// The journal has Detaching: members may be detached, locked, checkpointed or stopped. Else at
  /// most their gates are closed, and a stopped one was stopped by its user.
  bool detaching = false;
  /// The directory of the migration's CRIU; it is not removed here. Empty: no CRIU is running.
  std::filesystem::path scratch;
  /// The control group that holds the members, and the processes they have started, from the dump
  /// on. It may not exist. The processes return from it to their former groups.
  cgroups::Group group;
  std::vector<std::string> homes;  ///< former group of each member; may be shorter than `members`
  /// The member without the preload library, reached by the driver; 0: none; -1: unknown.
  pid_t driver_alone = 0;
  /// The GPUs to which checkpointed control state is restored; empty: the original ones.
  std::vector<device::GpuPair> gpus{};
  std::filesystem::path sysfs = "/sys";  ///< of this host; shows which drivers are loaded
  /// Called with Detaching, while no process of the job runs and before its connections go on.
  std::function<void()> reenter_network{};
};

/// State that a living worker passes to the undo; without it, recovery finds the same state out.
struct WorkerState {
  std::map<pid_t, gpu::GpuAccess*> accesses;  ///< by the member's PID
  std::shared_ptr<const device::Driver> driver;
  std::function<Result<gpu::MemberDescriptors>()> vram;
  bool gated = false;  ///< a gate may be closed; if false, the process was not touched
  bool detaching =
      false;  ///< replaces Lost::detaching; may be set before the journal has the record
  /// Called when all members that have not ended run again. May be null.
  std::function<void()> running{};
  /// Called after each step, with the step's name and its start time. May be null.
  std::function<void(const char* step, std::chrono::steady_clock::time_point began)> took{};
};

enum class Found {
  kInvalid = 0,
  kGone,     ///< all members have ended
  kRunning,  ///< all members that have not ended run, with their VRAM and open gates
};

/// Resumes the members at the source from any state that a worker can leave them in. In this order:
/// ends a CRIU that waits for the dead worker; waits for a CRIU that works on the members (it is
/// never killed) and for a driver call in progress; thaws and continues the tasks; restores and
/// unlocks CUDA; attaches VRAM; opens the gates; returns the members to their control groups. Loads
/// the CUDA driver if it is needed. Does not end the keeper: the caller does that afterwards.
///
/// On error the members stay in the state that was reached, and a later call may succeed.
/// kUnavailable: another agent is connected to a member's door. kDataLoss: the VRAM is lost,
/// because no keeper holds it.
Result<Found> bring_back(const Lost& lost, const WorkerState* worker_state = nullptr);

/// For a job that was suspended before its migration began: undoes the changes of a dump and leaves
/// the members stopped and frozen in their group. Success if no member exists.
Status refreeze_suspended(const Lost& lost);

/// What becomes of connections to outside when the copy at the source ends.
enum class Peers {
  kSeeTheEnd,   ///< as if the members had closed them
  kSeeNothing,  ///< they go on at the destination
};

/// After the commit: kills the stopped members at the source and their descendants, and waits until
/// they have ended. Success if none exists.
Status end_stopped(const std::vector<journal::ProcessId>& members, const cgroups::Group& group,
                   Peers peers = Peers::kSeeTheEnd);

/// kNotFound unless all restored members and their init exist without a pending SIGKILL.
Status find_restored(const journal::Restored& restored);

/// Lets the restored members run; until then they are stopped and frozen at the destination. They
/// stay in `group`. Success if they run already. kNotFound if a member or the init has ended.
Status resume_restored(const journal::Restored& restored, const cgroups::Group& group);

/// Kills the init of the restored members' PID namespace, and so every process in the namespace and
/// in `group`; waits until all have ended. Success if all ended before.
Status destroy_restored(const journal::Restored& restored, const cgroups::Group& group);

}  // namespace gcr::undo

// What is done to the members of a job that an agent, dead or about to give up, left in an unknown
// state. Nothing here trusts a record of how far things went: the state is read from the kernel,
// the driver and the processes themselves. Every function may be killed at any point and called
// again; after success, calling it again changes nothing. All of them block; one caller at a time
// for one job.
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

/// A job at the source that a worker was moving.
struct Lost {
  std::vector<journal::ProcessId> members;  ///< at least one
  /// The keeper of their VRAM, if one was started.
  std::optional<journal::ProcessId> keeper;
  /// The journal says Detaching: members may be detached, locked, checkpointed, stopped. Without it
  /// at most their gates are closed, and a stop is their user's own.
  bool detaching = false;
  /// Where the migration's CRIU worked. Left in place. Empty: none is at work.
  std::filesystem::path scratch;
  /// The group that holds the members from the dump on, if it exists, and all that was born below
  /// them since. They return to the groups that they came from.
  cgroups::Group group;
  std::vector<std::string> homes;  ///< in the order of the members; there may be fewer
  /// The member that is reached through the driver alone; 0: none; -1: it is not known.
  pid_t driver_alone = 0;
  /// Where control state goes that is still in host memory; empty: where it was.
  std::vector<device::GpuPair> gpus{};
  std::filesystem::path sysfs = "/sys";  ///< of this host: it tells which drivers there are
};

/// What a living worker has in hand, and recovery has to look for.
struct InHand {
  std::map<pid_t, gpu::GpuAccess*> accesses;  ///< by member
  std::shared_ptr<const device::Driver> driver;
  std::function<Result<gpu::MemberDescriptors>()> vram;
  bool gated = false;      ///< the gate may be closed; else nothing was done to the process
  bool detaching = false;  ///< for Lost; later than the journal's
  /// When all that have not ended run again. May be null.
  std::function<void()> running{};
  /// Called after each step, with its name and when it began. May be null.
  std::function<void(const char* step, std::chrono::steady_clock::time_point began)> took{};
};

enum class Found {
  kInvalid = 0,
  kGone,     ///< all members have ended
  kRunning,  ///< those that have not run, with their VRAM, their gates open
};

/// Brings the members back from whatever state they are in: ends a CRIU that waits for the dead
/// worker, waits for a CRIU that works on them (it is never killed) and for a driver call that is
/// under way, thaws and continues the tasks, restores and unlocks CUDA, attaches VRAM, opens the
/// gates, and returns them to their control group. The keeper stays: end it afterwards. The CUDA
/// driver is loaded if it is needed.
///
/// After an error they stay in the state that was reached; a later call may succeed.
/// kUnavailable: another agent has a door. kDataLoss: the VRAM is lost, because nobody holds it.
Result<Found> bring_back(const Lost& lost, const InHand* in_hand = nullptr);

/// Members that were suspended before: undoes what a dump has done to them, and leaves them stopped
/// and frozen in their group. Success if there are none any more.
Status stand_still(const Lost& lost);

/// After the commit: kills the stopped members at the source and their descendants, and waits until
/// they are gone. Success if there are none.
Status end_stopped(const std::vector<journal::ProcessId>& members, const cgroups::Group& group);

/// Whether all restored members and their init still exist, and have no pending SIGKILL. kNotFound
/// if not.
Status find_restored(const journal::Restored& restored);

/// Lets the restored members run, which are stopped and frozen at the destination. They stay in
/// `group`. Success if they run already. kNotFound if one of them, or their init, is gone.
Status resume_restored(const journal::Restored& restored, const cgroups::Group& group);

/// Kills the init of the restored members' PID namespace, and with it everything in the namespace
/// and in `group`; waits until all of it is gone. Success if it is gone already.
Status destroy_restored(const journal::Restored& restored, const cgroups::Group& group);

}  // namespace gcr::undo

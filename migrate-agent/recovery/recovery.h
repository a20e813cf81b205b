// What is done to a process that an agent, dead or about to give up, left in an unknown state.
// Nothing here trusts a record of how far things went: the state is read from the kernel, the
// driver and the process itself. Every function may be killed at any point and called again; after
// success, calling it again changes nothing. All of them block; one caller at a time for one
// process.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "migrate-agent/cgroups/group.h"
#include "migrate-agent/device/device.h"
#include "migrate-agent/gpu_access/gpu_access.h"
#include "migrate-agent/keeper/keeper.h"
#include "proto/journal.pb.h"
#include "src/base/result.h"

namespace gcr::recovery {

/// A process at the source that a worker was moving.
struct Lost {
  journal::ProcessId process;
  /// The keeper of its VRAM, if one was started.
  std::optional<journal::ProcessId> keeper;
  /// The journal says Detaching: the process may be detached, locked, checkpointed, stopped.
  /// Without it at most its gate is closed, and a stop is its user's own.
  bool detaching = false;
  /// Where the migration's CRIU worked. Left in place. Empty: none is at work.
  std::filesystem::path scratch;
  /// The group that holds the process from the dump on, if it exists, and the one it came from.
  cgroups::Group group;
  std::string home;
};

/// What a living worker has in hand, and recovery has to look for.
struct InHand {
  agent::GpuAccess& access;
  std::shared_ptr<const device::Driver> driver;
  std::function<Result<keeper::Descriptors>()> vram;
  bool gated = false;      ///< the gate may be closed; else nothing was done to the process
  bool detaching = false;  ///< for Lost; later than the journal's
};

enum class Found {
  kInvalid = 0,
  kGone,     ///< the process has ended
  kRunning,  ///< it runs, with its VRAM, its gate open
};

/// Brings the process back from whatever state it is in: ends a CRIU that waits for the dead
/// worker, waits for a CRIU that works on the process (it is never killed) and for a driver call
/// that is under way, thaws and continues the tasks, restores and unlocks CUDA, attaches VRAM,
/// opens the gate, and returns it to its control group. The keeper stays: end it afterwards. The
/// CUDA driver is loaded if it is needed.
///
/// After an error the process stays in the state that was reached; a later call may succeed.
/// kUnavailable: another agent has the door. kDataLoss: the VRAM is lost, because nobody holds it.
Result<Found> bring_back(const Lost& lost, const InHand* in_hand = nullptr);

/// After the commit: kills the stopped process at the source and its descendants, and waits until
/// they are gone. Success if there is none.
Status end_stopped(const journal::ProcessId& process, const cgroups::Group& group);

/// Whether the restored process and its init still exist, and have no pending SIGKILL. kNotFound if
/// not.
Status find_restored(const journal::Restored& restored);

/// Lets the restored process run, which is stopped and frozen at the destination. It stays in
/// `group`. Success if it runs already. kNotFound if it is gone.
Status resume_restored(const journal::Restored& restored, const cgroups::Group& group);

/// Kills the init of the restored process's PID namespace, and with it everything in the namespace
/// and in `group`; waits until all of it is gone. Success if it is gone already.
Status destroy_restored(const journal::Restored& restored, const cgroups::Group& group);

}  // namespace gcr::recovery

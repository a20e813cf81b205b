// What is done to a process when nobody knows in which state a dead agent left it. Nothing here
// trusts a record of how far things went: the state is read from the kernel, the driver and the
// process itself. Every function may be killed at any point and called again; called again after
// success, it changes nothing. All of them block; one caller at a time for one process.
#pragma once

#include <filesystem>
#include <optional>

#include "migrate-agent/cgroups/group.h"
#include "proto/journal.pb.h"
#include "src/base/result.h"

namespace gcr::recovery {

/// A process at the source that a dead worker was moving.
struct Lost {
  journal::ProcessId process;
  /// Who has the VRAM, if one was started.
  std::optional<journal::ProcessId> keeper;
  /// The journal says Detaching: the process may be detached, locked, checkpointed, stopped.
  /// Without it the process is at most behind its gate, and a stop is its user's own.
  bool detaching = false;
  /// Where the migration's CRIU worked. Left in place.
  std::filesystem::path scratch;
  /// That holds the process from the dump on, if it is there, and where the process came from.
  cgroups::Group group;
  std::string home;
};

enum class Found {
  kInvalid = 0,
  kGone,     ///< the process has ended
  kRunning,  ///< it runs, with its VRAM, its gate open
};

/// Brings the process back from wherever it stands: ends CRIU that waits for the dead worker, waits
/// for CRIU that works on the process (that is never killed) and for a call of the driver that is
/// under way, thaws and continues its tasks, restores and unlocks CUDA, attaches VRAM, opens the
/// gate, and returns it to its control group. The keeper stays: end it afterwards. The CUDA driver
/// is loaded if it is needed.
///
/// After an error the process is as far as this got; every error may be cured by a later call.
/// kUnavailable: another agent is at the door. kDataLoss: the VRAM is lost, nobody holds it.
Result<Found> bring_back(const Lost& lost);

/// After the commit: kills the stopped process at the source and all below it, and waits until they
/// are gone. Success if there is none.
Status end_stopped(const journal::ProcessId& process, const cgroups::Group& group);

/// Whether the restored process and its init are still there, and not about to die of SIGKILL.
/// kNotFound if not.
Status find_restored(const journal::Restored& restored);

/// The restored process, stopped and frozen at the destination, goes on. It stays in `group`.
/// Success if it runs already. kNotFound if it is gone.
Status resume_restored(const journal::Restored& restored, const cgroups::Group& group);

/// Kills the init of the restored process's PID namespace, and with it everything in there and in
/// `group`; waits until all of it is gone. Success if it is already.
Status destroy_restored(const journal::Restored& restored, const cgroups::Group& group);

}  // namespace gcr::recovery

// Records which worker owns which processes that are moved away, and which migrations that receive
// data connections. Bookkeeping only, no I/O; belongs to the daemon's thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "migrate-agent/commit/journal/journal.h"
#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::daemon {

using WorkerId = std::uint64_t;

class Registry {
 public:
  /// Claims the processes for the worker, by PID and start time: all of them or none. kRefused,
  /// naming the other migration, if another worker has one; kResourceExhausted beyond 4,096
  /// processes per worker. Claiming a process twice changes nothing.
  Status claim_processes(WorkerId worker, const Uuid& migration,
                         const journal::ProcessIds& processes);

  /// Marks the worker's processes as suspended; refusals then say so.
  void mark_suspended(WorkerId worker);

  /// Transfers the suspended processes of this migration to the worker, from any owner; they no
  /// longer count as suspended.
  void take_over_suspended(WorkerId worker, const Uuid& migration);

  /// Checks that no other worker has one of the processes. kRefused like claim_processes().
  Status check_processes(WorkerId worker, const journal::ProcessIds& processes) const;

  /// Assigns the migration to the worker. kRefused if another worker has it, or this one has
  /// another.
  Status register_migration(WorkerId worker, const Uuid& migration);

  /// Returns the worker that gets data connections for `migration`.
  std::optional<WorkerId> owner_of(const Uuid& migration) const;

  /// Releases the worker's processes before it has ended, so that others may claim them.
  void release_processes(WorkerId worker);

  /// Releases everything that the worker has.
  void release(WorkerId worker);

 private:
  struct Claim {
    WorkerId worker = 0;
    Uuid migration;
    bool suspended = false;
  };
  std::map<std::pair<pid_t, std::uint64_t>, Claim> claims_;
  std::unordered_map<Uuid, WorkerId> migrations_;
};

}  // namespace gcr::daemon

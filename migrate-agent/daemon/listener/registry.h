// Which worker owns what on this host: processes that are moved away, and migrations that receive
// data connections. Bookkeeping only, no input or output; belongs to the daemon's thread.
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
  /// Gives the processes to the worker, by PID and start time: all of them or none. kRefused,
  /// naming the other migration, if another worker has one; kResourceExhausted beyond 4,096
  /// processes per worker. Claiming twice changes nothing.
  Status claim_processes(WorkerId worker, const Uuid& migration,
                         const journal::ProcessIds& processes);

  /// The worker's processes are suspended: a refusal says so.
  void mark_suspended(WorkerId worker);

  /// Gives the suspended processes of this migration, whoever had them, to the worker; they are not
  /// suspended any more.
  void take_over_suspended(WorkerId worker, const Uuid& migration);

  /// Whether another worker has one of them: then kRefused, as claim_processes().
  Status check_processes(WorkerId worker, const journal::ProcessIds& processes) const;

  /// Gives the migration to the worker. kRefused if another worker has it, or this one has another.
  Status register_migration(WorkerId worker, const Uuid& migration);

  /// The worker that gets data connections for `migration`.
  std::optional<WorkerId> owner_of(const Uuid& migration) const;

  /// Releases the worker's processes before it has ended: others may claim them.
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

// Which worker owns what on this host: processes that migrate away, and migrations that data
// connections come for. Bookkeeping only, no input or output; belongs to the daemon's thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::agent {

using WorkerId = std::uint64_t;

class Registry {
 public:
  /// Makes (pid, start_time) the worker's. kRefused, naming the other migration, if it is another
  /// worker's; kResourceExhausted beyond 4,096 processes per worker. Claiming twice changes
  /// nothing.
  Status claim_process(WorkerId worker, const Uuid& migration, pid_t pid, std::uint64_t start_time);

  /// Whether claim_process() would let the worker have it.
  Status check_process(WorkerId worker, pid_t pid, std::uint64_t start_time) const;

  /// Makes the migration the worker's. kRefused if it is another's or the worker has one already.
  Status register_migration(WorkerId worker, const Uuid& migration);

  /// Who gets data connections for `migration`.
  std::optional<WorkerId> owner_of(const Uuid& migration) const;

  /// The worker is done with its processes, though it has not ended yet: another may have them.
  void release_processes(WorkerId worker);

  /// Forgets everything that is the worker's.
  void release(WorkerId worker);

 private:
  struct Claim {
    WorkerId worker = 0;
    Uuid migration;
  };
  std::map<std::pair<pid_t, std::uint64_t>, Claim> claims_;
  std::unordered_map<Uuid, WorkerId> migrations_;
};

}  // namespace gcr::agent

// Operations on a directory of checkpoints: list, verify, remove, prune, and the ownership of a
// restore.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "store/manifest.h"

namespace gcr::store {

/// One checkpoint of a directory.
struct Listed {
  std::string name;
  proto::Manifest manifest{};      ///< empty if there is a problem
  std::optional<Uuid> restore{};   ///< the restore that owns it; no other can restore it
  std::optional<Error> problem{};  ///< why it is invalid or cannot be restored
};

/// Lists all checkpoints, oldest first, those with a problem last. Checks that their contents
/// exist, but does not read them.
Result<std::vector<Listed>> list(const Directory& directory, const control::TlsFiles& tls);

struct Verified {
  std::uint64_t contents = 0;
  std::uint64_t bytes = 0;  ///< uncompressed
};

/// Reads and verifies every content of the checkpoint, with several threads. kDataLoss names the
/// content that is missing or damaged.
Result<Verified> verify(const Directory& directory, const proto::Manifest& manifest);

struct Pruned {
  std::vector<std::string> removed{};  ///< checkpoints
  std::uint64_t freed_bytes = 0;       ///< of packs
};

/// Whether two checkpoints are of the same job: same user, same command, and same PID in the job's
/// own PID namespace, which migrations and restores preserve.
bool is_same_job(const proto::Manifest& one, const proto::Manifest& other);

/// Removes checkpoints, also invalid ones; prune() removes their contents later. kNotFound, and
/// nothing is removed, if one does not exist; kRefused while another process writes.
Status remove(const Directory& directory, const std::vector<std::string>& names);

/// Keeps the newest `keep` checkpoints of each job and removes the others; `keep` 0 removes none.
/// Then removes unneeded data: packs without a content of a remaining checkpoint, and leftovers of
/// dead writers. Rewrites a pack of which less than half is needed. Does not remove sealed
/// checkpoints; discard() does. kRefused while another process writes, or if a checkpoint is
/// invalid, because its needs are unknown. If the process is killed at any moment, all remaining
/// checkpoints are complete.
Result<Pruned> prune(const Directory& directory, unsigned keep, const control::TlsFiles& tls);

/// Prunes as prune(), but removes only checkpoints of the same job as `newest`. The caller holds
/// the directory's lock.
Result<Pruned> prune_job(const Directory& directory, unsigned keep, const proto::Manifest& newest,
                         const control::TlsFiles& tls);

/// Makes the restore the owner of the checkpoint, so that others do not find it. If several try,
/// one succeeds; the others get kNotFound.
Status begin_restore(const Directory& directory, const std::string& name, const Uuid& restore);

/// Publishes the checkpoint again after its restore failed. kNotFound: the restore owns none.
Status cancel_restore(const Directory& directory, const std::string& name, const Uuid& restore);

/// Removes the checkpoint of a restore whose job runs, with contents that no other checkpoint
/// needs, and the directory if it is empty then. Leaves to prune() what cannot be removed now.
Status end_restore(const Directory& directory, const Uuid& restore, const control::TlsFiles& tls);

}  // namespace gcr::store

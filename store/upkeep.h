// What is done with a directory of checkpoints as a whole.
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
  std::optional<Uuid> restore{};   ///< that has it for itself: nobody else can restore it
  std::optional<Error> problem{};  ///< why it cannot be believed or restored
};

/// All, oldest first; those with a problem last. That contents are there is checked, not what they
/// hold.
Result<std::vector<Listed>> list(const Directory& directory, const control::TlsFiles& tls);

struct Verified {
  std::uint64_t contents = 0;
  std::uint64_t bytes = 0;  ///< uncompressed
};

/// Reads every content of the checkpoint and proves it; with several threads. kDataLoss names what
/// is missing or wrong.
Result<Verified> verify(const Directory& directory, const proto::Manifest& manifest);

struct Pruned {
  std::vector<std::string> removed{};  ///< checkpoints
  std::uint64_t freed_bytes = 0;       ///< of packs
};

/// Whether they were taken of one job: of one user's, with the same command and the same PID in its
/// own PID namespace, which migrations and restores keep.
bool is_same_job(const proto::Manifest& one, const proto::Manifest& other);

/// Removes checkpoints whatever their files hold, also such as cannot be believed; what they needed
/// stays for prune(). kNotFound, and nothing is removed, if there is none of a name; kRefused while
/// somebody writes.
Status remove(const Directory& directory, const std::vector<std::string>& names);

/// Keeps the newest `keep` checkpoints of each job and removes the others; `keep` 0 removes none.
/// Removes what nobody needs any more: packs without a content of a checkpoint that is left, and
/// leftovers of dead writers. A sealed checkpoint stays: discard() removes it. A pack of which less
/// than half is needed is written anew. kRefused while somebody writes, or while a checkpoint there
/// cannot be believed: what it needs is unknown. Killed at any moment, every checkpoint that is
/// left is whole.
Result<Pruned> prune(const Directory& directory, unsigned keep, const control::TlsFiles& tls);

/// The same with the lock in hand, and for one job alone: of the checkpoints that are of the same
/// job as `newest`.
Result<Pruned> prune_job(const Directory& directory, unsigned keep, const proto::Manifest& newest,
                         const control::TlsFiles& tls);

/// From here on the checkpoint is this restore's alone: nobody else finds it. Of several that try,
/// one succeeds. kNotFound.
Status begin_restore(const Directory& directory, const std::string& name, const Uuid& restore);

/// The restore came to nothing: the checkpoint is there again. kNotFound: the restore has none.
Status cancel_restore(const Directory& directory, const std::string& name, const Uuid& restore);

/// The job runs: removes the checkpoint that the restore has, with what no other needs, and the
/// directory if nothing else is in it. What cannot be removed now is left to prune().
Status end_restore(const Directory& directory, const Uuid& restore, const control::TlsFiles& tls);

}  // namespace gcr::store

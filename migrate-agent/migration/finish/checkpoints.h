// The files of checkpoints that a source takes or restores, once the migration is decided.
#pragma once

#include "migrate-agent/commit/journal/journal.h"
#include "src/base/result.h"
#include "src/control/tls_files.h"

namespace gcr::finish {

/// Whether the migration takes a checkpoint: its target is a store and not another agent.
inline bool takes_checkpoint(const journal::Began& began) {
  return !began.store().empty() && !began.loads();
}

/// In committed: gives the checkpoint its name, unless it has it already. kNotFound: its files are
/// gone, so the checkpoint can never be completed.
Status publish_checkpoint(const journal::Journal& journal);

/// Removes the files of a checkpoint that was aborted; does nothing for other migrations. Files
/// that cannot be removed are logged, and left to the next writer in that directory.
void discard_checkpoint(const journal::Journal& journal);

/// Ends a restore that has reserved its checkpoint (`--once`): removes the checkpoint if the job
/// runs (`done`), otherwise makes it available again. Errors are logged; the file then keeps the
/// name that the restore gave it.
void end_restore(const journal::Journal& journal, const control::TlsFiles& tls, bool done);

}  // namespace gcr::finish

// Checkpoints that a source takes or loads: what becomes of their files when the journal decides.
#pragma once

#include "migrate-agent/commit/journal/journal.h"
#include "src/base/result.h"
#include "src/control/tls_files.h"

namespace gcr::finish {

/// Whether the target is a store, and not another agent.
inline bool takes_checkpoint(const journal::Began& began) {
  return !began.store().empty() && !began.loads();
}

/// In committed: gives the checkpoint its name, unless it has it. kNotFound: its files are gone, so
/// that it never will exist.
Status publish_checkpoint(const journal::Journal& journal);

/// Removes the files of a checkpoint that will never exist, if the journal is of one. Files that
/// cannot be removed are left to the next writer there.
void discard_checkpoint(const journal::Journal& journal);

/// Of a restore that has its checkpoint for itself: it is there again, or, once the job runs
/// (`done`), removed. What fails is logged: the file stays under the restore's name.
void end_restore(const journal::Journal& journal, const control::TlsFiles& tls, bool done);

}  // namespace gcr::finish

// The list of memory files that a migration holds on this host, stored in its own file next to the
// journal: a record is too small for the files of a large job. Only the journal's owner uses it.
#pragma once

#include <filesystem>

#include "proto/journal.pb.h"
#include "src/base/result.h"

namespace gcr::journal {

/// Stores `files` for the journal at `journal`, in place of the previous list. On success the list
/// is on disk; on failure either the old or the new list is.
Status keep_files(const std::filesystem::path& journal, const HeldFiles& files);

/// Returns the stored list; an empty one if none is stored. kDataLoss if it is damaged.
Result<HeldFiles> kept_files(const std::filesystem::path& journal);

/// Removes the stored list; success if there is none.
Status forget_files(const std::filesystem::path& journal);

}  // namespace gcr::journal

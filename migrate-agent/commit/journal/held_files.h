// What a migration holds of files in memory on this host, in a file of its own beside the journal:
// a record is too small for the files of a large job. It belongs to the journal's owner.
#pragma once

#include <filesystem>

#include "proto/journal.pb.h"
#include "src/base/result.h"

namespace gcr::journal {

/// For the journal at `journal`: replaces what was kept before. On the disk afterwards; on failure
/// either the old or the new list is.
Status keep_files(const std::filesystem::path& journal, const HeldFiles& files);

/// Nothing if nothing was kept. kDataLoss if it is not whole.
Result<HeldFiles> kept_files(const std::filesystem::path& journal);

/// Success if nothing was kept.
Status forget_files(const std::filesystem::path& journal);

}  // namespace gcr::journal

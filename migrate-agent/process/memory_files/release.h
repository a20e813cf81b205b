// Removes names of files in memory from this host, as the list next to the journal has them, with
// the rights of the member that owns the file. A name that leads to another file by now, or that
// the member may not remove, is left alone; no symbolic link is followed.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <vector>

#include "proto/journal.pb.h"
#include "src/base/result.h"

namespace gcr::memory_files {

enum class Which {
  kMade,  ///< those that this migration has made
  kAll,   ///< and those that go with the job
};

/// `pids`: processes whose mount namespace may have the files, if they still exist; else, and where
/// there are none, the caller's own is tried.
Status remove_names(const journal::HeldFiles& files, Which which,
                    const std::vector<pid_t>& pids = {});

/// The same for what is kept for this journal, which is then forgotten. `restarted`: the host was,
/// and the files are gone with it.
Status release(const std::filesystem::path& journal, bool restarted, Which which,
               const std::vector<pid_t>& pids = {});

}  // namespace gcr::memory_files

// Who else on this host has a file.
#pragma once

#include <sys/types.h>

#include <map>
#include <set>

#include "migrate-agent/linux/procfs/directory.h"

namespace gcr::memory_files {

/// For each of `files` that a process outside of `members` has open or mapped, one such process.
/// Agents are none: they hold files for moments. Looks at every process, unless `files` is empty.
std::map<procfs::FileId, pid_t> outsiders(const std::set<procfs::FileId>& files,
                                          const std::set<pid_t>& members);

}  // namespace gcr::memory_files

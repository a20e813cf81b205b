// Removed files that a process has, and what of them it could read by itself. CRIU takes the
// content of a removed file along without asking who may read it: into a checkpoint that is the
// user's, for example.
#pragma once

#include <sys/types.h>

#include "migrate-agent/base/findings/catalogue.h"
#include "src/base/result.h"

namespace gcr::process {

/// Adds "deleted-file-access" for each regular file without a name that `pid` has, but not open for
/// reading, and that none of its threads could open for reading. Its program counts: it may be
/// executed by who may not read it. Opens nothing. kNotFound if the process is gone; other errors
/// if its rights cannot be tried.
Status look_at_removed_files(pid_t pid, findings::Findings& findings);

}  // namespace gcr::process

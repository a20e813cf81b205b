// What either side writes into its journal to settle a migration, and finds by it on this host.
#pragma once

#include <string>

#include "migrate-agent/cgroups/group.h"
#include "migrate-agent/journal/journal.h"

namespace gcr::settlement {

journal::Record aborted(const Error& cause);

/// `pid`: of the process that runs here, 0 if none.
journal::Record finished(const std::string& text, pid_t pid = 0);

journal::Record resolved(bool run_here, const std::string& by);

/// The control group of the migration's process on this host, whether it exists or not.
cgroups::Group group_of(const journal::Journal& journal);

/// Whether the host was restarted since the migration began: then all its processes are gone.
bool host_was_restarted(const journal::Began& began);

}  // namespace gcr::settlement

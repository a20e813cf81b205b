// What either side writes into its journal to settle a migration, and finds by it on this host.
#pragma once

#include <optional>
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

/// What the last keeper of its kind holds: the VRAM itself, or a copy of it in host memory.
enum class Kept { kVram, kCopy };

/// The last keeper of this kind; none if none was started, or it ended with the host.
std::optional<journal::ProcessId> keeper_of(const journal::Journal& journal, Kept kept);

/// Whether the host was restarted since the migration began: then all its processes are gone.
bool host_was_restarted(const journal::Began& began);

}  // namespace gcr::settlement

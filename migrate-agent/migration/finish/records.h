// What either side writes into its journal to settle a migration, and finds by it on this host.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "migrate-agent/commit/journal/journal.h"
#include "migrate-agent/linux/cgroups/group.h"

namespace gcr::finish {

journal::Record aborted(const Error& cause);

/// `pid`: of the process that runs here, 0 if none.
journal::Record finished(const std::string& text, pid_t pid = 0);

journal::Record resolved(bool run_here, const std::string& by);

/// The control group of the migration's process on this host, whether it exists or not. A suspended
/// job stays in the group in which it was suspended.
cgroups::Group group_of(const journal::Journal& journal);
cgroups::Group group_named_after(const std::filesystem::path& journal);

/// Of a migration of a suspended job: the journal that has suspended it. Empty for others.
std::filesystem::path suspension_of(const journal::Journal& journal);

/// The unfinished migration of a suspended job, whose journal this is: as long as there is one, the
/// job is that one's, and nobody else's. None: nobody moves it. A journal that is damaged from its
/// beginning may be of it. For the owner of `suspension`: nobody else begins one.
Result<std::optional<Uuid>> migration_of_suspended(const journal::Journal& suspension);

/// What the last keeper of its kind holds: the VRAM itself, or a copy of it in host memory.
enum class Kept { kVram, kCopy };

/// The last keeper of this kind; none if none was started, or it ended with the host.
std::optional<journal::ProcessId> keeper_of(std::span<const journal::Record> records, Kept kept);

/// Whether the host was restarted since the migration began: then all its processes are gone.
bool host_was_restarted(const journal::Began& began);

}  // namespace gcr::finish

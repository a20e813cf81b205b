// Journal records that settle a migration; processes and groups that a journal names.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "migrate-agent/commit/journal/journal.h"
#include "migrate-agent/linux/cgroups/group.h"

namespace gcr::finish {

journal::Record aborted(const Error& cause);

/// The record Finished. `pid`: the process that runs on this host, 0 if none.
journal::Record finished(const std::string& text, pid_t pid = 0);

journal::Record resolved(bool run_here, const std::string& by);

/// The control group of the migration's processes on this host, whether it exists or not. A
/// suspended job stays in the group in which it was suspended.
cgroups::Group group_of(const journal::Journal& journal);
cgroups::Group group_named_after(const std::filesystem::path& journal);

/// The journal of the suspension, if this is a migration of a suspended job; otherwise empty.
std::filesystem::path suspension_of(const journal::Journal& journal);

/// The unfinished migration that moves the suspended job of the journal `suspension`; none if the
/// job is not being moved. As long as there is one, only that migration may touch the job. A
/// journal without a readable first record counts, because it may belong to this job. Call it as
/// the owner of `suspension`: then no other migration can begin meanwhile.
Result<std::optional<Uuid>> migration_of_suspended(const journal::Journal& suspension);

/// What a keeper holds: the VRAM itself, or a copy of it in host memory.
enum class Kept { kVram, kCopy };

/// The last keeper of this kind; none if none was started, or the host was restarted since.
std::optional<journal::ProcessId> keeper_of(std::span<const journal::Record> records, Kept kept);

/// kRefused if the group cannot be frozen. A job that is only stopped could be continued without
/// its VRAM, by a SIGCONT from any process of its user.
Status check_freezer(const cgroups::Group& group);

/// Whether the process has not ended.
bool is_alive(const journal::ProcessId& id);

/// Whether the host was restarted since the migration began; then all its processes have ended.
bool host_was_restarted(const journal::Began& began);

}  // namespace gcr::finish

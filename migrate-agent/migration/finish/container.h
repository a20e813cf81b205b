// Containers when a migration is settled, by a worker or a recovery: the job leaves its container,
// or is handed to the one that was started to receive it. May be repeated.
#pragma once

#include <filesystem>
#include <string>

#include "migrate-agent/commit/journal/journal.h"
#include "migrate-agent/linux/cgroups/group.h"
#include "migrate-agent/linux/procfs/container.h"
#include "migrate-agent/worker/config/config.h"

namespace gcr::finish {

/// A container as journals describe it: its init, and the control group that could freeze it.
/// kNotFound if it is gone.
Result<journal::Container> describe(const procfs::Container& container);

/// The group of the migration below the control groups of the container that receives the job.
Result<cgroups::Group> group_in_container(const journal::Journal& journal);

/// At the source, once the commit is in its journal: notes that the container's job has left, so
/// that its engine does not start the program again. Success if the job is in no container that an
/// engine has named.
Status note_left(const journal::Began& began, const worker::Config& config);

/// At the source, after the commit and before its copy is killed: tells the container's init that
/// the job has moved, so that the container does not end with it. Success if the job is in none, or
/// the container has ended. Otherwise the copy must stay: its death could let the engine start the
/// program anew.
Status leave_container(const journal::Began& began);

/// At the destination, once the commit is in its journal and before the copy runs or is handed to a
/// suspension: notes that the container has received its job (when the engine starts it again, the
/// program starts), and tells its init which process is the job's root. Success if there is no
/// container.
Status enter_container(const journal::Journal& journal, const journal::Restored& copy,
                       const worker::Config& config);

/// Removes the migration's group below those of the container, and moves the copy into these if it
/// is still in it. Success if there is no container.
Status join_container(const journal::Began& began, const cgroups::Group& group);

/// Whether a job has come into the container that waits with this key: it receives no other.
Result<bool> has_received(const std::filesystem::path& state_dir, const std::string& key);

/// Before the commit: ends the container that was to receive the job, and all that is in it.
/// Success if there is none, or another migration has brought its job meanwhile: what is in it is
/// that job's then.
Status end_container(const journal::Journal& journal);

}  // namespace gcr::finish

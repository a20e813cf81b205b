// Slurm jobs when a migration is settled, by a worker or a recovery: the processes leave the Slurm
// job that owned them and join the one that is to own them.
#pragma once

#include <string>

#include "migrate-agent/commit/journal/journal.h"
#include "migrate-agent/linux/cgroups/group.h"
#include "migrate-agent/worker/config/config.h"

namespace gcr::finish {

/// Moves all of the copy into the Slurm job that is to own it, if there is one, and writes the
/// root's PID for the job's script. Call it once the commit is in the destination's journal. May be
/// repeated, also while the copy runs. If the Slurm job has ended by then, the copy is killed, and
/// the result is the reason; otherwise the result is empty. After any other error no process of the
/// copy runs that did not run before.
Result<std::string> join_job(const journal::Journal& journal, const journal::Restored& copy,
                             const worker::Config& config, const cgroups::Group& group);

/// At the source, after the commit and before its copy is killed: tells the script of the Slurm job
/// that its processes move away. Success if they are in none.
Status leave_job(const journal::Began& began, const worker::Config& config);

}  // namespace gcr::finish

// What is done about jobs of Slurm's when a migration is settled, by workers and recoveries alike:
// the processes leave the job that owned them, and join the one that is to own them.
#pragma once

#include <string>

#include "migrate-agent/commit/journal/journal.h"
#include "migrate-agent/linux/cgroups/group.h"
#include "migrate-agent/worker/config/config.h"

namespace gcr::finish {

/// Once the commit is in the destination's journal: if a job of Slurm's is to own the copy, all of
/// the copy joins it, and its script is told the root's PID. May be repeated, also when the copy
/// runs. If the job has ended by then, the copy is killed: the result says so, and is empty
/// otherwise. After any other error nothing of the copy runs that did not run before.
Result<std::string> join_job(const journal::Journal& journal, const journal::Restored& copy,
                             const worker::Config& config, const cgroups::Group& group);

/// At the source, after the commit and before its copy is killed: tells the script of the job that
/// the processes leave. Success if they are in none.
Status leave_job(const journal::Began& began, const worker::Config& config);

}  // namespace gcr::finish

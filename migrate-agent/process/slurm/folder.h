// The folder by which a Slurm job, whose script waits in it, learns what becomes of the processes
// that it owns: FOLDER/JOB/ of agent.toml's [slurm]. Only root writes there; all users may read.
//
//   pid     of the root member, once all have joined the job
//   status  how that ended, as waitpid(2) tells it, in decimal; written by gcr-reaper
//   moved   the processes have left the job; the number of the job that owns them now, if any
//
// A file has its name when it is complete. Blocks; any thread.
#pragma once

#include "migrate-agent/process/slurm/step.h"
#include "src/base/unique_fd.h"

namespace gcr::slurm {

/// The directory of a job's folder, which is made if it is not there. Removes folders of jobs that
/// have ended on this host.
Result<UniqueFd> open_folder(const Settings& settings, JobId job);

Status note_pid(const Settings& settings, JobId job, pid_t pid);

/// For a root member whose status was not waited for: as if SIGKILL had ended it. A status that is
/// there stays.
Status note_lost(const Settings& settings, JobId job);

/// `successor`: 0 if no job owns the processes now.
Status note_moved(const Settings& settings, JobId job, JobId successor);

}  // namespace gcr::slurm

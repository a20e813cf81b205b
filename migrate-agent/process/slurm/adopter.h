// What gcr-slurm-adopt and the agent agree on:
//   gcr-slurm-adopt LIBRARY SPOOL NODE JOB              writes the user of the job's extern step
//   gcr-slurm-adopt LIBRARY SPOOL NODE JOB UID PID...   has that step take the processes
// An error is one line on standard error.
#pragma once

namespace gcr::slurm::adopter {

enum class Exit : int {
  kDone = 0,
  kFailed = 1,  ///< a process has not joined, or the step did not answer
  kUsage = 2,
  kNoLibrary = 3,  ///< the library cannot be loaded, or is of another kind
  kNoStep = 4,     ///< the job has no extern step here, or is another user's
};

}  // namespace gcr::slurm::adopter

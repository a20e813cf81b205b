// Slurm jobs on this host. A job's *extern step* is a Slurm process on each of its nodes,
// which takes processes that Slurm did not start into the job's control groups. Slurm's library,
// which speaks to it, is loaded by gcr-slurm-adopt alone. Everything blocks; any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "src/base/result.h"

namespace gcr::slurm {

/// What agent.toml says of Slurm on this host, in its table [slurm].
struct Settings {
  std::string node;  ///< what Slurm calls this host (NodeName); empty: it has no Slurm
  std::filesystem::path spool = "/var/spool/slurmd";  ///< SlurmdSpoolDir, as slurmd expands it
  std::filesystem::path library =
      "/usr/lib/x86_64-linux-gnu/slurm-wlm/libslurmfull.so";  ///< where Debian has it
  std::filesystem::path folder = "/run/gcr-migrate-slurm";    ///< see folder.h
  std::filesystem::path adopter;                              ///< gcr-slurm-adopt

  bool is_set() const { return !node.empty(); }
};

using JobId = std::uint32_t;  ///< 0: none

/// The user of a job that has an extern step on this host. kNotFound if it has none for five
/// seconds, as a job that is just being started; kUnsupported if this host has no Slurm, or its
/// library cannot be used.
Result<uid_t> owner_of_extern_step(const Settings& settings, JobId job);

/// Has the extern step take these processes, which are not its descendants then: what they fork
/// later belongs to it, what they have forked does not. Processes that have ended are skipped. May
/// be repeated. kNotFound if the job has no extern step here, or is not `owner`'s; after other
/// errors some may have joined.
Status join_extern_step(const Settings& settings, JobId job, uid_t owner,
                        std::span<const pid_t> processes);

/// A step of a job, by its name in Slurm's control groups: "extern", "batch", "0".
struct Step {
  JobId job = 0;
  std::string name;

  bool operator==(const Step&) const = default;
};

inline constexpr char kExtern[] = "extern";

/// The step whose control groups, made by slurmd, a process is in; none if in none. Of version 1
/// they are /slurm*/uid_U/job_J/step_S, of version 2 /system.slice/*slurmstepd.scope/job_J/step_S.
std::optional<Step> step_of(pid_t pid);

/// The same, of the name of one group.
std::optional<Step> step_of_group(const std::string& group);

}  // namespace gcr::slurm

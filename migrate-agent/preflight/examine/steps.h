// The steps of examine() that are in files of their own. Internal to this folder. Each adds its
// facts and findings to an Examination; examination.h says in which order they run.
#pragma once

#include <vector>

#include "migrate-agent/preflight/examine/examination.h"

namespace gcr::preflight {

// members.cc

/// Returns the id of a thread of `pid` in its own PID namespace. The driver may report ids of the
/// caller's namespace, which differ for a process that was restored into its own namespace.
pid_t in_own_namespace(pid_t pid, pid_t tid);

/// Waits until children in vfork execute their programs, which takes a moment: until then their
/// parents, and so the job, cannot be stopped. Adds "in-vfork" after 2 s.
void wait_for_vforks(const std::vector<pid_t>& pids, findings::Findings& findings);

/// Examines all members; false if the examination must end here. `limits` are those of all members,
/// if they are known; else null.
bool examine_members(const proto::MigrateRequest& request, const std::vector<pid_t>& pids,
                     const proto::GroupLimits* limits, Examination& found);

/// Finds the members that CRIU can dump only with a plugin. On a host without AMD GPUs HIP has
/// nothing to use.
void find_plugins(const worker::Config& config, Examination& found);

// gpu_users.cc

/// Finds the members that use GPUs, and examines their control state, their VRAM and the GPUs.
void examine_gpu_users(const proto::MigrateRequest& request, const worker::Config& config,
                       Examination& found);

}  // namespace gcr::preflight

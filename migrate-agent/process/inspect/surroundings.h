// What a process has from its host besides what it holds: ids, capabilities, limits, CPUs, groups.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>

#include "migrate-agent/process/inspect/inspect.h"

namespace gcr::process {

/// Where a client of MPS finds the control daemon unless CUDA_MPS_PIPE_DIRECTORY says otherwise.
inline constexpr char kMpsDirectory[] = "/tmp/nvidia-mps";

/// Adds facts (uid to hugepages of proto::ProcessFacts, without sockets; limits) and findings:
/// "root-directory", "cpu-affinity", "cgroup-limits", "agent-capabilities", "mps". `limits` as for
/// inspect().
void inspect_surroundings(pid_t pid, const proto::GroupLimits* limits, Inspection& inspection);

/// The AppArmor profile that confines it; empty where none does.
std::string apparmor_profile(pid_t pid);

/// Its context, "user:role:type:level"; empty on a host that is not under SELinux.
std::string selinux_context(pid_t pid);

/// The capabilities that a program which this process starts as root has: its bounding set.
std::uint64_t capabilities_to_hand_on();

/// How many System V objects that no process is attached to, semaphores and message queues in our
/// own IPC namespace, belong to one of these users, such as "2 sets of semaphores and 1 message
/// queue"; empty if none does.
std::string unattached_objects(const std::set<uid_t>& users);

}  // namespace gcr::process

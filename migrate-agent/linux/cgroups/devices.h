// Which devices the control groups of a process allow. No file tells: version 2 has programs that
// decide, version 1 has rules by device numbers, which mean other devices on another host. So a
// child process asks the kernel, from within the groups, about each device of this host.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "migrate-agent/linux/cgroups/hierarchy.h"
#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"
#include "src/base/uuid.h"

namespace gcr::cgroups {

/// The device nodes of this host's GPUs: what a process needs of one alone.
std::map<Uuid, std::string> gpu_nodes();

/// The cgroup.procs of those groups of a process that may forbid devices. None if there is no such
/// group.
Result<std::vector<UniqueFd>> device_groups_of(const std::vector<Hierarchy>& hierarchies,
                                               pid_t pid);

/// The devices that a process may open; none if nothing is forbidden. A child of the caller joins
/// the groups of the process for a moment. kTimeout if the child does not answer.
Result<std::optional<proto::DeviceLimits>> devices_of(const std::vector<Hierarchy>& hierarchies,
                                                      pid_t pid);

/// All devices that exist now on this host, but for these GPUs. None if this host has no devices of
/// theirs.
std::optional<proto::DeviceLimits> devices_without(const std::set<Uuid>& gpus);

/// Lets the processes of a group open only these devices: those that exist now, by their numbers on
/// this host. GPUs are named by their UUID on this host. If the terminal multiplexer is allowed, so
/// is every terminal that it makes. Processes in the group cannot create device nodes.
Status limit_devices(const Hierarchy& hierarchy, const std::filesystem::path& group,
                     const proto::DeviceLimits& limits);

}  // namespace gcr::cgroups

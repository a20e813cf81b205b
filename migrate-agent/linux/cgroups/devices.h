// Reads and sets the devices that control groups allow. No file lists them: version 2 uses BPF
// programs, version 1 has rules by device numbers, which mean other devices on another host. So
// devices_of() forks a child into the groups, and the child tests each device of this host with
// access(2).
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

/// Returns the device nodes of this host's GPUs: those that a process needs for one GPU only.
std::map<Uuid, std::string> gpu_nodes();

/// Opens cgroup.procs of those groups of a process that may forbid devices. Empty if there is no
/// such group.
Result<std::vector<UniqueFd>> device_groups_of(const std::vector<Hierarchy>& hierarchies,
                                               pid_t pid);

/// Returns the devices that a process may open; none if all are allowed. A child of the caller
/// joins the groups of the process for a moment. kTimeout if the child does not end.
Result<std::optional<proto::DeviceLimits>> devices_of(const std::vector<Hierarchy>& hierarchies,
                                                      pid_t pid);

/// Returns those of these GPUs, by UUID and device node of this host, that a process cannot open:
/// the node is missing in the process's root directory or has other device numbers there, or its
/// control groups forbid it. Fails as devices_of() does.
Result<std::set<Uuid>> hidden_gpus(const std::vector<Hierarchy>& hierarchies, pid_t pid,
                                   const std::map<Uuid, std::string>& nodes = gpu_nodes());

/// Returns all devices that this host has now, except these GPUs. None if this host has none of
/// these GPUs.
std::optional<proto::DeviceLimits> devices_without(const std::set<Uuid>& gpus);

/// Restricts the processes of a group to these devices: those that exist now, by their numbers on
/// this host. GPUs are named by their UUID on this host. If the terminal multiplexer is allowed, so
/// is every terminal that it creates. Processes in the group cannot create device nodes.
Status limit_devices(const Hierarchy& hierarchy, const std::filesystem::path& group,
                     const proto::DeviceLimits& limits);

}  // namespace gcr::cgroups

// Which devices the control groups of a process let it open. No file tells: version 2 has programs
// that decide, version 1 rules in numbers, which mean other devices on another host. So the kernel
// is asked, from within the groups, about each device that this host has.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <vector>

#include "migrate-agent/cgroups/hierarchy.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::cgroups {

/// What a process may open; none if nothing is forbidden. A child of the caller joins the groups of
/// the process for a moment. kTimeout if it does not come back.
Result<std::optional<proto::DeviceLimits>> devices_of(const std::vector<Hierarchy>& hierarchies,
                                                      pid_t pid);

/// Lets the processes of a group open these devices alone: those that are there now, by their
/// numbers here. A GPU is named by its UUID here. Where the multiplexer of terminals is allowed,
/// every terminal that it makes is. Nobody in the group makes device nodes.
Status limit_devices(const Hierarchy& hierarchy, const std::filesystem::path& group,
                     const proto::DeviceLimits& limits);

}  // namespace gcr::cgroups

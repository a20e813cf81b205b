// The limits of control groups: memory, swap, processes, CPU time, CPUs, memory nodes and devices.
// The source reads the effective limits of the process, from its groups and all groups above them;
// the destination sets the same limits on the process's own group. A limit that the process shared
// with others at the source applies to it alone afterwards. Weights and memory.high are not copied:
// they are priorities, not limits.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "migrate-agent/linux/cgroups/hierarchy.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::cgroups {

/// Returns the effective limits of a process. kUnsupported if one of its groups is not visible
/// here.
Result<proto::GroupLimits> limits_of(const std::vector<Hierarchy>& hierarchies, pid_t pid);

/// Returns a sentence for each of the `limits` that this host cannot apply. Changes nothing.
std::vector<std::string> unsupported_limits(const std::vector<Hierarchy>& hierarchies,
                                            const proto::GroupLimits& limits);

/// Creates the group `name` in each hierarchy that is needed and sets the limits. kUnsupported if
/// one cannot be set; groups that were created then stay, without processes.
Status apply_limits(const std::vector<Hierarchy>& hierarchies, const std::string& name,
                    const proto::GroupLimits& limits);

/// Formats the limits: "memory of 1073741824 bytes, 10 processes"; empty without limits.
std::string describe(const proto::GroupLimits& limits);

/// Creates a group at the top of a hierarchy; success if it exists.
Status make_group(const Hierarchy& hierarchy, const std::string& name);

}  // namespace gcr::cgroups

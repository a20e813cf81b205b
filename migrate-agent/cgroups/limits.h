// What control groups allow a process: memory, swap, processes, CPU time, CPUs, memory nodes and
// devices. The source reads what its groups and all groups above them allow together, the
// destination keeps it in a group of the process's own. What is shared in the source's groups with
// others the process has to itself afterwards. Weights, and memory.high, are no limits: they say
// who goes first where there is not enough.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "migrate-agent/cgroups/hierarchy.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::cgroups {

/// The limits of a process. kUnsupported where one of its groups cannot be seen from here.
Result<proto::GroupLimits> limits_of(const std::vector<Hierarchy>& hierarchies, pid_t pid);

/// What of `limits` cannot be kept on this host, a sentence each. Changes nothing.
std::vector<std::string> not_kept(const std::vector<Hierarchy>& hierarchies,
                                  const proto::GroupLimits& limits);

/// Makes the group `name` in each hierarchy that is needed, and sets the limits there. kUnsupported
/// if one cannot be set; groups that were made then stay, without processes.
Status keep(const std::vector<Hierarchy>& hierarchies, const std::string& name,
            const proto::GroupLimits& limits);

/// "memory of 1073741824 bytes, 10 processes"; empty without limits.
std::string describe(const proto::GroupLimits& limits);

/// Makes a group at the top of a hierarchy; success if it is there.
Status make_group(const Hierarchy& hierarchy, const std::string& name);

}  // namespace gcr::cgroups

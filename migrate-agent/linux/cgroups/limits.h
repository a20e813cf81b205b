// What control groups allow a process: memory, swap, processes, CPU time, CPUs, memory nodes and
// devices. The source reads what the process's groups and all groups above them allow together; the
// destination sets the same limits on the process's own group. A limit that the process shared with
// others at the source applies to it alone afterwards. Weights, and memory.high, are not limits:
// they set priorities.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "migrate-agent/linux/cgroups/hierarchy.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::cgroups {

/// The limits of a process. kUnsupported if one of its groups is not visible here.
Result<proto::GroupLimits> limits_of(const std::vector<Hierarchy>& hierarchies, pid_t pid);

/// The `limits` that cannot be kept on this host, a sentence for each. Changes nothing.
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

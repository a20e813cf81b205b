// The open descriptors of a process: what moves with it, and what does not.
#pragma once

#include <sys/types.h>

#include "migrate-agent/process/inspect/inspect.h"

namespace gcr::process {

/// Adds findings and bound sockets for every descriptor of `pid`. kPermissionDenied if
/// its descriptors may not be read. `same_network`: the process is in our network namespace;
/// otherwise sockets are not looked at.
Status inspect_descriptors(pid_t pid, const Together& together, bool same_network,
                           OutsideTcp outside_tcp, Inspection& inspection);

/// Findings about what descriptors are, not about who else has them: without a look at other
/// processes, or at the kernel's tables of connections.
Status inspect_descriptor_kinds(pid_t pid, Inspection& inspection);

/// The program name and number of a process for messages, like "1234 (bash)".
std::string describe_process(pid_t pid);

}  // namespace gcr::process

// The open descriptors of a process: what moves with it, and what does not.
#pragma once

#include <sys/types.h>

#include <string>

#include "migrate-agent/process/inspect/inspect.h"

namespace gcr::process {

/// Adds findings and bound sockets for every descriptor of `pid`. kPermissionDenied if
/// its descriptors may not be read. `together` null: only findings about what descriptors are, not
/// about who else has them, without a look at other processes or at the kernel's tables of
/// connections. `same_network`: the process is in our network namespace or that of its container;
/// otherwise sockets are not looked at.
Status inspect_descriptors(pid_t pid, const Together* together, bool same_network,
                           OutsideTcp outside_tcp, Inspection& inspection);

/// Why the descriptor `number` of a process, which `link` leads to and which is on a procfs, cannot
/// be opened anew by its name; empty if it can: it belongs to no process, or to the process itself
/// as it is now. CRIU opens the name again: at the destination it would lead to another process, or
/// to a program that the process has become since.
std::string why_not_by_name(pid_t pid, int number, const std::string& link);

/// Whether `path` is of a process in /proc: it begins with "/proc/" and a number.
bool is_of_process(const std::string& path);

/// The program name and number of a process for messages, like "1234 (bash)".
std::string describe_process(pid_t pid);

}  // namespace gcr::process

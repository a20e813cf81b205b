// Descriptors on a procfs. CRIU opens their names again: at the destination a name would lead to
// another process, or to a program that the process has become since.
#pragma once

#include <sys/types.h>

#include <string>

namespace gcr::process {

/// Why the descriptor `number` of a process, which `link` leads to and which is on a procfs, cannot
/// be opened anew by its name; empty if it can: it belongs to no process, or to the process itself
/// as it is now.
std::string why_not_by_name(pid_t pid, int number, const std::string& link);

/// Whether `path` is of a process in /proc: it begins with "/proc/" and a number.
bool is_of_process(const std::string& path);

}  // namespace gcr::process

// System V objects that no process is attached to: semaphores and message queues.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>

namespace gcr::process {

/// How many of them in our own IPC namespace belong to one of these users, such as "2 sets of
/// semaphores and 1 message queue"; empty if none does.
std::string unattached_objects(const std::set<uid_t>& users);

}  // namespace gcr::process

// The library's side of the door (door_protocol.h): its descriptors, its thread, and what remains
// of it after a fork.
#pragma once

#include <cstdint>

namespace gcr::preload {

/// Makes the door and its thread, once per process; later calls do nothing. False if that fails (no
/// descriptors, no memory): the process goes on without a door, and the next call tries again.
bool start_door();

/// The thread's id in the process's own PID namespace, 0 before it runs.
std::int32_t door_thread_id();

/// Serves requests until the descriptors are closed. The body of the door's thread.
void serve_door(int door_fd);

}  // namespace gcr::preload

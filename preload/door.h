// The library's end of the door (door_protocol.h): its descriptors, its thread, and its fork
// handlers.
#pragma once

#include <cstdint>

namespace gcr::preload {

/// Creates the door and its thread, once per process; later calls do nothing. False if that fails
/// (no descriptors, no memory): the process continues without a door, and the next call tries
/// again.
bool start_door();

/// The id of the door's thread in the process's own PID namespace; 0 before the thread runs.
std::int32_t door_thread_id();

/// Serves requests until the descriptors are closed. The body of the door's thread.
void serve_door(int door_fd);

}  // namespace gcr::preload

// The library's side of the door (door_protocol.h): descriptors, the thread behind them, and what a
// fork leaves of it.
#pragma once

#include <cstdint>

namespace gcr::preload {

/// Makes the door and its thread, once per process; later calls do nothing. Where that cannot be
/// done (no descriptors, no memory) the process goes on without one, and the next call tries again.
void start_door();

/// The thread's id in the process's own PID namespace, 0 before it runs.
std::int32_t door_thread_id();

/// Runs requests until the descriptors are gone. The body of the door's thread.
void serve_door(int door_fd);

}  // namespace gcr::preload

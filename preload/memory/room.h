// Where memory has run out although medium arenas have room: what is unused in them goes back to
// the driver, so that many buffers never cost a program memory that it would have without us.
#pragma once

#include <cstddef>

namespace gcr::preload {

struct Runtime;

/// Dissolves medium arenas, those with most room first, until `device` has `wanted_bytes`: what is
/// allocated in them gets memory of its own, at the same addresses. True: it is worth trying again.
/// False at once if there are no such arenas, or they have too little.
///
/// The caller is inside the gate and holds nothing; other threads and the GPU are waited for, for a
/// limited time, and a migration can lie between. Not while a stream is captured. Takes the mutex.
bool make_room(Runtime& r, int device, std::size_t wanted_bytes);

}  // namespace gcr::preload

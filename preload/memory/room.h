// Reclaims unused memory of medium arenas when memory has run out, so that arenas never cost a
// program memory that it would have without this library.
#pragma once

#include <cstddef>

namespace gcr::preload {

struct Runtime;

/// Dissolves medium arenas, those with most unused memory first, until `device` has `wanted_bytes`:
/// each allocation in them gets physical memory of its own, at the same address. True: trying the
/// allocation again is worthwhile. False at once if there are no such arenas, or they have too
/// little.
///
/// The caller is inside the gate and holds no lock. Waits for other threads and the GPU, for a
/// limited time; a whole migration may happen meanwhile. Not while a stream is captured. Takes the
/// mutex.
bool make_room(Runtime& r, int device, std::size_t wanted_bytes);

}  // namespace gcr::preload

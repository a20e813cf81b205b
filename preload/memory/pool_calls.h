// What the calls of stream-ordered allocation and of pools do, and the calls that wait: see
// pools.h. `driver` is the application's call. Every function takes the mutex.
#pragma once

#include "preload/memory/runtime.h"

namespace gcr::preload {

/// Memory of `pool`, null for the current one. `driver` allocates into `address`. What a graph
/// allocates is not noted: its memory comes and goes with launches, and the driver says how much it
/// is.
Result allocate_async(Runtime& r, Address* address, std::size_t size_bytes, PoolHandle* pool,
                      Stream* stream, RealCall driver);
Result free_async(Runtime& r, Address address, Stream* stream, RealCall driver);

/// A graph has been made to allocate.
void note_graph_memory(Runtime& r);

/// A pool was exported, or imported from another process. The driver's control restore fails for
/// the process that has imported it, and for one with memory of a pool on the host (measured:
/// NVIDIA's 580.159).
void note_lost_pool(Runtime& r);

/// Destroys a pool by `driver`.
Result destroy_pool(Runtime& r, PoolHandle* pool, RealCall driver);

/// After the driver has done the same.
void trim_pool(Runtime& r, PoolHandle* pool, std::size_t bytes_to_keep);
/// After the application has set an attribute to `value`: an int for those that begin with kReuse,
/// 64 bits for the others.
void attribute_was_set(Runtime& r, PoolHandle* pool, PoolAttribute attribute, const void* value);
/// After the driver has answered `value`: adds what the library has of it.
void add_to_attribute(Runtime& r, PoolHandle* pool, PoolAttribute attribute, void* value);
/// After the driver has agreed.
Result pool_access_was_set(Runtime& r, PoolHandle* pool, std::size_t count,
                           FunctionRef<Access(std::size_t)> access_at);

/// The current pools may be others now.
void current_pools_changed(Runtime& r);

/// Frees in streams' orders so far. Before a call that waits, for what comes after it. Takes no
/// mutex.
inline std::uint64_t frees(const Runtime& r) {
  return r.pools.tickets.load(std::memory_order_relaxed);
}

}  // namespace gcr::preload

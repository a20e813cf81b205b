// The calls of stream-ordered allocation, on pools, and those that wait; see pools.h. `driver` is
// the application's call. Every function takes the mutex.
#pragma once

#include "preload/memory/runtime.h"

namespace gcr::preload {

/// Allocates from `pool`, null for the current one; `driver` allocates into `address`. Allocations
/// of graphs are not recorded: their memory exists during launches, and the driver reports its
/// size.
Result allocate_async(Runtime& r, Address* address, std::size_t size_bytes, PoolHandle* pool,
                      Stream* stream, RealCall driver);
Result free_async(Runtime& r, Address address, Stream* stream, RealCall driver);

/// Records that a graph has allocation nodes.
void note_graph_memory(Runtime& r);

/// Records a pool that the driver's control restore cannot restore: it was exported or imported, or
/// has memory on the host (measured with NVIDIA 580.159, for the importing process and for host
/// pools).
void note_unrestorable_pool(Runtime& r);

/// Applies an attribute that the application has set: `value` is an int for those that begin with
/// kReuse, 64 bits for the others.
void attribute_was_set(Runtime& r, PoolHandle* pool, PoolAttribute attribute, const void* value);
/// Adds the library's share to `value`, the driver's answer for an attribute.
void add_to_attribute(Runtime& r, PoolHandle* pool, PoolAttribute attribute, void* value);

/// Drops the cached current pools, because the application may have changed them.
void current_pools_changed(Runtime& r);

/// Number of stream-ordered frees so far. Read it before a call that waits, for the note after it.
/// Takes no mutex.
inline std::uint64_t frees(const Runtime& r) {
  return r.pools.tickets.load(std::memory_order_relaxed);
}

}  // namespace gcr::preload

// Backed allocations: the application's allocations on physical memory that a descriptor owns
// (decision 1).
//
// An allocation reserves addresses, creates physical memory, maps it and opens it to its device and
// to peers; the inventory records it. Small allocations, and medium ones in a process with many
// buffers, are ranges of an arena; others have a mapping of their own. A free first removes the
// allocation from the inventory, waits until the GPU no longer uses it (or defers that), and then
// releases the range or unmaps the memory.
#pragma once

#include <cstddef>

#include "preload/memory/runtime.h"

namespace gcr::preload {

/// Gets the current context of the calling thread and its device; false if there is none.
bool current_context(Runtime& r, Context** context, int* device);

/// The device of the memory; for host memory the current device, else the first. Also reads the
/// device's facts, so that the inventory can name its GPU without a driver call. Takes the mutex.
int device_of(Runtime& r, const Asked& asked);

/// Facts of a device, which are read from the driver the first time. Takes the mutex.
DeviceFacts device_facts(Runtime& r, int device);

/// Allocates backed memory of `requested_bytes` in the current context. On failure returns false
/// and changes nothing; the caller should then use the driver's own allocator. Takes the mutex.
bool allocate_backed(Runtime& r, std::size_t requested_bytes, Address* address);

/// Records an allocation that the driver made itself. Takes the mutex.
void note_driver_allocation(Runtime& r, Address address, std::size_t size_bytes, bool managed);

/// Records the module variable at `address` if it is managed memory. Takes the mutex.
void note_variable(Runtime& r, Address address);

/// Whether any managed memory is known, allocated or in a module. The caller holds the mutex.
bool has_managed_memory(Runtime& r);

/// Whether a backed allocation starts at `address`, which is in `mapping`. The caller holds the
/// mutex.
bool is_backed(Runtime& r, const Mapping& mapping, Address address);

/// Physical memory and its mapping, before the inventory records them.
struct Backing {
  Handle handle = 0;
  Address address = 0;
  std::size_t size_bytes = 0;
};

/// Creates and maps at least `wanted_bytes`; if memory is short, first releases unused memory.
/// False: nothing was created. Takes the mutex.
bool make_backing(Runtime& r, int device, std::size_t wanted_bytes, Backing* backing);

/// Records the backing in the inventory, with access for `device`. The caller holds the mutex.
Mapping& add_backing(Runtime& r, int device, const Backing& backing);

/// Records the backing for plain allocations of `context`, with access for its peers. The caller
/// holds the mutex.
Mapping& add_backing_of(Runtime& r, Context* context, int device, const Backing& backing);

/// Releases empty arenas and empty stretches of pools: all of them, or those that are not kept for
/// later allocations. Not during a capture. True if there was one. Takes the mutex.
bool release_unused(Runtime& r, bool all);

/// Creates physical memory for `device` that a descriptor can own. If the driver refuses memory for
/// RDMA, creates ordinary memory now and later. Takes the mutex.
bool create_memory(Runtime& r, int device, std::size_t size_bytes, Handle* handle);

/// Maps the whole physical allocation at reserved addresses and gives `device` access. On failure
/// nothing is mapped.
Result map_at(Runtime& r, Address address, std::size_t size_bytes, Handle handle, int device);

/// Reserves addresses for the whole of `handle`, maps it and gives `device` access. On failure
/// returns 0, and nothing is reserved.
Address map_whole(Runtime& r, Handle handle, std::size_t size_bytes, std::size_t alignment_bytes,
                  int device);

/// Waits until `context` is idle, as the driver does before it frees memory. Not during a
/// capture.
Result synchronize(Runtime& r, Context* context);

/// Removes a plain allocation from the inventory, and its `mapping` too if that is no arena and has
/// no other allocation. The memory is not reused before release(). The caller holds the mutex.
Freed remove_from_inventory(Runtime& r, Mapping& mapping, Address address);

/// Frees a range of an arena, or unmaps and releases a mapping. The GPU must no longer use it.
/// Takes the mutex.
void release(Runtime& r, const Freed& freed);

/// Unmaps a mapping that was removed from the inventory, and frees its addresses and its memory.
/// The GPU must no longer use it. Takes the mutex.
void unmap_and_release(Runtime& r, const Mapping& mapping);

/// Performs deferred frees that are possible now: none while a stream is captured, and those in a
/// stream's order only after the stream has passed that point. Takes the mutex.
void flush_deferred_frees(Runtime& r);

/// Releases a physical allocation that has neither handles nor mappings. The caller holds the
/// mutex.
void release_if_unused(Runtime& r, Physical& physical);

/// Returns a new descriptor of `physical`, which the caller closes: an export, or a duplicate of
/// the one that is kept since an attach. The caller holds the mutex; does not call malloc.
Result export_descriptor(Runtime& r, const Physical& physical, int* fd);

/// Marks `physical` as shared with other processes. All its exported descriptors are from now on
/// duplicates of one, by which an agent recognises the same memory. The caller holds the mutex.
Result share(Runtime& r, Physical& physical);

/// Sets the devices that may access a backed mapping: those of its pool, or its own device and the
/// devices of contexts with peer access to its context. The caller holds the mutex.
Result apply_access(Runtime& r, Mapping& mapping);

}  // namespace gcr::preload

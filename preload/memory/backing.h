// The application's allocations on physical memory that a descriptor owns (decision 1): creating
// and freeing them, and the access that peer devices have to them.
#pragma once

#include <cstddef>

#include "preload/memory/runtime.h"

namespace gcr::preload {

/// The current context of the calling thread and its device, or false if there is none.
bool current_context(Runtime& r, Context** context, int* device);

/// The device that memory is on, or for host memory the current one, else the first. Its facts are
/// known afterwards: the inventory names its GPU without asking the driver. Takes the mutex.
int device_of(Runtime& r, const Asked& asked);

/// Facts of a device; the driver is asked the first time. Takes the mutex.
DeviceFacts device_facts(Runtime& r, int device);

/// Backed memory of `requested_bytes` in the current context, as the driver would give it: a
/// mapping of its own or a range of an arena, which small allocations always are, and medium ones
/// in a process with many buffers. False: nothing is left behind, `address` is untouched and the
/// driver's own allocator should be asked. Takes the mutex.
bool allocate_backed(Runtime& r, std::size_t requested_bytes, Address* address);

/// Remembers an allocation that the driver made itself. Takes the mutex.
void note_driver_allocation(Runtime& r, Address address, std::size_t size_bytes, bool managed);

/// Remembers the variable of a module at `address` if it is managed memory. Takes the mutex.
void note_variable(Runtime& r, Address address);

/// Whether any managed memory is known, allocated or in a module. Holds the mutex.
bool has_managed_memory(Runtime& r);

/// Whether an allocation that the library backs starts at `address`, which is in `mapping`. Holds
/// the mutex already.
bool is_backed(Runtime& r, const Mapping& mapping, Address address);

/// Memory and where it is mapped, on its way into the inventory.
struct Backing {
  Handle handle = 0;
  Address address = 0;
  std::size_t size_bytes = 0;
};

/// At least `wanted_bytes`; what is unused is given back for it if need be. False: nothing is left
/// behind. Takes the mutex.
bool make_backing(Runtime& r, int device, std::size_t wanted_bytes, Backing* backing);

/// Puts it into the inventory; `device` has access. Holds the mutex already.
Mapping& add_backing(Runtime& r, int device, const Backing& backing);

/// The same for plain allocations of one context, whose peers have access. Holds the mutex already.
Mapping& add_backing_of(Runtime& r, Context* context, int device, const Backing& backing);

/// Gives back arenas and stretches of pools in which nothing is left: all, or those that need not
/// be kept for what comes next. Not during a capture. True if there was one. Takes the mutex.
bool release_unused(Runtime& r, bool all);

/// Physical memory for `device`, which a descriptor can own. If the driver refuses memory that RDMA
/// can reach, it is allocated without that from then on. Takes the mutex.
bool create_memory(Runtime& r, int device, std::size_t size_bytes, Handle* handle);

/// Maps the whole of a physical allocation where addresses are reserved and gives `device` access.
/// On failure nothing is mapped.
Result map_at(Runtime& r, Address address, std::size_t size_bytes, Handle handle, int device);

/// Reserves addresses for the whole of `physical`, maps it and gives `device` access. 0 if that
/// fails; then nothing is left behind.
Address map_whole(Runtime& r, Handle handle, std::size_t size_bytes, std::size_t alignment_bytes,
                  int device);

/// Waits until `context` is idle, as the driver does before it frees memory. Not during a
/// capture.
Result synchronize(Runtime& r, Context* context);

/// Takes a plain allocation out of the inventory; `mapping` is the one that it is in, and goes with
/// its last one unless it is an arena. Nothing of it is used again before `release`. Holds the
/// mutex already.
Freed take_plain(Runtime& r, Mapping& mapping, Address address);

/// Makes a range of an arena free again, or takes a mapping apart. The GPU must be done with it.
/// Takes the mutex.
void release(Runtime& r, const Freed& freed);

/// Unmaps what was taken out of the inventory, gives its addresses back and releases its memory.
/// The GPU must be done with it. Takes the mutex.
void take_apart(Runtime& r, const Mapping& mapping);

/// Releases what was freed earlier and can go now: nothing while a stream is captured, and memory
/// that was freed in a stream's order only after the stream has passed that point. Takes the mutex.
void flush_deferred_frees(Runtime& r);

/// Releases a physical allocation that has neither handles nor mappings. Holds the mutex already.
void release_if_unused(Runtime& r, Physical& physical);

/// A new descriptor of `physical`, which the caller closes: exported, or a duplicate of the one
/// kept since an attach. Holds the mutex already; does not call malloc.
Result export_descriptor(Runtime& r, const Physical& physical, int* fd);

/// Other processes may get it. From now on all descriptors that leave are duplicates of one: an
/// agent tells by it what is the same memory. Holds the mutex already.
Result share(Runtime& r, Physical& physical);

/// Tells the driver which devices may access a backed mapping: those of its pool, or its own device
/// and the devices of contexts that enabled peer access to its context. Holds the mutex already.
Result apply_access(Runtime& r, Mapping& mapping);

}  // namespace gcr::preload

// The application's allocations on physical memory that a descriptor owns (decision 1): creating
// and freeing them, and the access that peer devices have to them.
#pragma once

#include <cstddef>

#include "preload/cuda/process_state.h"

namespace gcr::preload {

/// The current context of the calling thread and its device, or false if there is none.
bool current_context(CUcontext* context, int* device);

/// The GPU (or the MIG part of one) that the driver has at an ordinal now; zeros if it does not
/// say.
CUuuid device_uuid(int device);

/// The device that memory of these properties is on, or for host memory the current one, else the
/// first. Its facts are known afterwards: the inventory names its GPU without asking the driver.
/// Takes the mutex.
int device_of(const CUmemAllocationProp& properties);

/// Facts of a device; the driver is asked the first time. Takes the mutex.
DeviceFacts device_facts(int device);

/// Backed memory of `requested_bytes` in the current context, as cuMemAlloc would give it: a
/// mapping of its own or a range of an arena, which small allocations always are, and medium ones
/// in a process with many buffers. False: nothing is left behind, `address` is untouched and the
/// driver's own allocator should be asked. Takes the mutex.
bool allocate_backed(std::size_t requested_bytes, CUdeviceptr* address);

/// Remembers an allocation that the driver made itself. Takes the mutex.
void note_driver_allocation(CUdeviceptr address, std::size_t size_bytes, bool managed);

/// Whether an allocation that the library backs starts at `address`, which is in `mapping`. Holds
/// the mutex already.
bool is_backed(ProcessState& state, const Mapping& mapping, CUdeviceptr address);

/// Memory and where it is mapped, on its way into the inventory.
struct Backing {
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  std::size_t size_bytes = 0;
};

/// At least `wanted_bytes`; what is unused is given back for it if need be. False: nothing is left
/// behind. Takes the mutex.
bool make_backing(int device, std::size_t wanted_bytes, Backing* backing);

/// Puts it into the inventory; `device` has access. Holds the mutex already.
Mapping& add_backing(ProcessState& state, int device, const Backing& backing);

/// The same for plain allocations of one context, whose peers have access. Holds the mutex already.
Mapping& add_backing_of(ProcessState& state, CUcontext context, int device, const Backing& backing);

/// Gives back arenas and stretches of pools in which nothing is left: all, or those that need not
/// be kept for what comes next. Not during a capture. True if there was one. Takes the mutex.
bool release_unused(bool all);

/// Physical memory for `device`, which a descriptor can own. If the driver refuses memory that RDMA
/// can reach, it is allocated without that from then on. Takes the mutex.
bool create_memory(int device, std::size_t size_bytes, CUmemGenericAllocationHandle* handle);

/// Maps the whole of a physical allocation where addresses are reserved and gives `device` access.
/// On failure nothing is mapped.
CUresult map_at(CUdeviceptr address, std::size_t size_bytes, CUmemGenericAllocationHandle handle,
                int device);

/// Reserves addresses for the whole of `physical`, maps it and gives `device` access. 0 if that
/// fails; then nothing is left behind.
CUdeviceptr map_whole(CUmemGenericAllocationHandle handle, std::size_t size_bytes,
                      std::size_t alignment_bytes, int device);

/// Waits until `context` is idle, as the driver does before it frees memory. Not during a
/// capture.
CUresult synchronize(CUcontext context);

/// Takes a plain allocation out of the inventory; `mapping` is the one that it is in, and goes with
/// its last one unless it is an arena. Nothing of it is used again before `release`. Holds the
/// mutex already.
Freed take_plain(ProcessState& state, Mapping& mapping, CUdeviceptr address);

/// Makes a range of an arena free again, or takes a mapping apart. The GPU must be done with it.
/// Takes the mutex.
void release(const Freed& freed);

/// Unmaps what was taken out of the inventory, gives its addresses back and releases its memory.
/// The GPU must be done with it. Takes the mutex.
void take_apart(const Mapping& mapping);

/// Releases what was freed earlier and can go now: nothing while a stream is captured, and memory
/// that was freed in a stream's order only after the stream has passed that point. Takes the mutex.
void flush_deferred_frees();

/// Releases a physical allocation that has neither handles nor mappings. Holds the mutex already.
void release_if_unused(ProcessState& state, Physical& physical);

/// A new descriptor of `physical`, which the caller closes: exported, or a duplicate of the one
/// kept since an attach. Holds the mutex already; does not call malloc.
CUresult export_descriptor(const Physical& physical, int* fd);

/// Other processes may get it. From now on all descriptors that leave are duplicates of one: an
/// agent tells by it what is the same memory. Holds the mutex already.
CUresult share(Physical& physical);

/// Tells the driver which devices may access a backed mapping: those of its pool, or its own device
/// and the devices of contexts that enabled peer access to its context. Holds the mutex already.
CUresult apply_access(ProcessState& state, Mapping& mapping);

}  // namespace gcr::preload

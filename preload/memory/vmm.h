// The application's own virtual memory management. The application gets values of the library
// instead of the driver's handles, so that the physical memory behind them can be released and
// replaced. Memory that cannot be passed by a descriptor (fabric handles, tile pools, multicast
// objects) keeps the driver's handle and is not tracked. Every function takes the mutex; `driver`
// is the application's call, made with the mutex held if the function says so.
#pragma once

#include "preload/memory/runtime.h"

namespace gcr::preload {

/// Creates tracked memory; the application gets `handle`. If that is not possible, `driver` creates
/// memory that is not tracked.
Result create_tracked(Runtime& r, Handle* handle, std::size_t size_bytes, const Asked& asked,
                      unsigned long long flags, RealCall driver);

/// Releases one reference of the application to `handle`; `driver` releases a handle of its own.
Result release_handle(Runtime& r, Handle handle, RealCall driver);

/// Maps `handle`; `driver` maps the driver's handle that it gets. Holds the mutex during that call.
Result map_handle(Runtime& r, Address address, std::size_t size_bytes, std::size_t offset_bytes,
                  Handle handle, FunctionRef<Result(Handle)> driver);
Result unmap_range(Runtime& r, Address address, std::size_t size_bytes, RealCall driver);
Result free_range(Runtime& r, Address address, std::size_t size_bytes, RealCall driver);

/// Changes access by `driver` and then records the `count` accesses from `access_at`. Holds the
/// mutex during the call.
Result change_access(Runtime& r, Address address, std::size_t size_bytes, RealCall driver,
                     std::size_t count, FunctionRef<Access(std::size_t)> access_at);

/// Exports a descriptor of tracked memory for the application; `driver` exports untracked memory.
/// `fd` may be null. Holds the mutex during the call.
Result export_handle(Runtime& r, Handle handle, unsigned handle_type, int* fd, RealCall driver);

/// Returns the handle that the application gets for imported memory. `own` is the driver's handle,
/// and `fd` the descriptor from which it was imported, -1 for another type.
Handle imported(Runtime& r, Handle own, int fd);

/// Returns the properties that the application requested; `driver` answers for untracked memory.
/// `asked` may be null. Holds the mutex during the call.
Result asked_of(Runtime& r, Handle handle, Asked* asked, RealCall driver);

/// Returns another handle for mapped memory; `driver` retains untracked memory into `handle`, which
/// may be null. Holds the mutex during the call.
Result retain_handle(Runtime& r, Handle* handle, Address address, RealCall driver);

}  // namespace gcr::preload

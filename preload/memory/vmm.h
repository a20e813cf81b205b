// The application's own virtual memory management. It holds values of the library instead of the
// driver's handles, so that the physical memory behind them can be released and replaced. Memory
// that cannot be passed by a descriptor (fabric handles, tile pools, multicast objects) keeps the
// driver's handle and is not tracked. Every function takes the mutex; `driver` is the application's
// call, made with the mutex held where that is said.
#pragma once

#include <optional>

#include "preload/memory/runtime.h"

namespace gcr::preload {

/// Creates tracked memory; the application gets `handle`. Nothing: the driver should be asked for
/// what the application wants, and note_fallback told if it has it.
std::optional<Result> create_tracked(Runtime& r, Handle* handle, std::size_t size_bytes,
                                     const Asked& asked, unsigned long long flags);
void note_fallback(Runtime& r);

/// What the application gives back. Nothing: it is the driver's.
std::optional<Result> release_handle(Runtime& r, Handle handle);

/// `driver` maps the handle that it is given. Holds the mutex meanwhile.
Result map_handle(Runtime& r, Address address, std::size_t size_bytes, std::size_t offset_bytes,
                  Handle handle, FunctionRef<Result(Handle)> driver);
Result unmap_range(Runtime& r, Address address, std::size_t size_bytes, RealCall driver);
Result free_range(Runtime& r, Address address, std::size_t size_bytes, RealCall driver);

/// After the driver has agreed, `access_at` gives the `count` accesses. Holds the mutex meanwhile.
Result change_access(Runtime& r, Address address, std::size_t size_bytes, RealCall driver,
                     std::size_t count, FunctionRef<Access(std::size_t)> access_at);

/// A descriptor for the application, of memory that it may export so. Holds the mutex meanwhile.
/// `driver` exports what is not tracked; `fd` may be null.
Result export_handle(Runtime& r, Handle handle, unsigned handle_type, int* fd, RealCall driver);

/// What the application gets for memory that it imported: `own` is the driver's handle, and `fd`
/// what it was imported from, -1 if that was no descriptor.
Handle imported(Runtime& r, Handle own, int fd);

/// What the application asked for. Holds the mutex meanwhile; `asked` may be null.
Result asked_of(Runtime& r, Handle handle, Asked* asked, RealCall driver);

/// Another handle for mapped memory. `driver` retains what is not tracked, into `handle`, which may
/// be null. Holds the mutex meanwhile.
Result retain_handle(Runtime& r, Handle* handle, Address address, RealCall driver);

}  // namespace gcr::preload

// Plain allocations, as cuMemAlloc and hipMalloc make them: backed wherever that is possible
// (decision 1). "The driver" answers where these functions say nothing.
#pragma once

#include <optional>

#include "preload/memory/bounds.h"
#include "preload/memory/runtime.h"

namespace gcr::preload {

/// Backed memory of `size_bytes` in the current context. False: the driver should be asked, and
/// note_driver_allocation told. Takes the mutex.
bool allocate_plain(Runtime& r, Address* address, std::size_t size_bytes);

/// The same for rows of `width_bytes`, whose pitch is the driver's.
bool allocate_pitched(Runtime& r, Address* address, std::size_t* pitch_bytes,
                      std::size_t width_bytes, std::size_t height);

/// Frees a plain allocation, after waiting for its context. Nothing: it is the driver's, which is
/// forgotten. Takes the mutex.
std::optional<Result> free_plain(Runtime& r, Address address);

/// The allocation that an address is in, as the driver would give it. Nothing: ask the driver.
/// Takes the mutex.
struct PlainRange {
  Result result = Result::kSuccess;  ///< kNotFound: it is in no allocation
  Address address = 0;
  std::size_t size_bytes = 0;
  bool in_reach = true;  ///< of the current context: it is on its device, or that has peer access
};
std::optional<PlainRange> plain_range(Runtime& r, Address address);

/// What the library knows of one address, copied so that the mutex need not be held.
struct View {
  bool plain = false;   ///< of a plain allocation
  bool unused = false;  ///< in a mapping of the library's, but of no allocation
  Plain allocation;
  Address mapping = 0;
  std::size_t mapped_bytes = 0;
  int device = 0;              ///< that the memory is on
  bool on_host = false;        ///< it is in the host's memory instead
  Context* context = nullptr;  ///< null for memory of a pool
  bool pooled = false;
  PoolHandle* pool = nullptr;
  unsigned handle_types = 0;  ///< of the application's own mapping
};

/// Nothing: it is the driver's. Takes the mutex.
std::optional<View> view_of(Runtime& r, Address address);

/// How far copies and fills may go from an address: to the end of the plain allocation that it is
/// in, in units of 512 bytes, which is what allocations of the driver take. Takes the mutex.
bounds::Range range_around(Runtime& r, Address address);

/// As the application set it. Takes the mutex.
void set_sync_memops(Runtime& r, Address address, bool value);

/// An address of which the driver knows nothing, for queries on memory that is not allocated.
Address unknown_address();

/// The memory at `address`, if it is tracked, is reachable in ways that a detach cannot undo. Takes
/// the mutex.
void note_foreign(Runtime& r, Address address);

/// The driver's registering of the application's own memory, and the undoing. A device writes to it
/// without a fault, so an agent that asks the kernel what was written has to know of it. Takes the
/// mutex.
Result register_host_memory(Runtime& r, const void* at, std::size_t size_bytes, RealCall driver);
Result unregister_host_memory(Runtime& r, const void* at, RealCall driver);

}  // namespace gcr::preload

// Plain allocations, as cuMemAlloc and hipMalloc make them: backed if possible (decision 1). A
// function that returns nullopt or false leaves the call to the driver.
#pragma once

#include <optional>

#include "preload/memory/bounds.h"
#include "preload/memory/runtime.h"

namespace gcr::preload {

/// Allocates backed memory of `size_bytes` in the current context. False: use the driver, and then
/// call note_driver_allocation(). Takes the mutex.
bool allocate_plain(Runtime& r, Address* address, std::size_t size_bytes);

/// Allocates `height` rows of `width_bytes` with the driver's pitch. False and mutex as above.
bool allocate_pitched(Runtime& r, Address* address, std::size_t* pitch_bytes,
                      std::size_t width_bytes, std::size_t height);

/// Frees a plain allocation, after waiting for its context. Nullopt: the driver must free it; its
/// record was removed. Takes the mutex.
std::optional<Result> free_plain(Runtime& r, Address address);

/// The allocation that contains an address, as the driver would report it. plain_range() returns
/// nullopt if the driver must answer; it takes the mutex.
struct PlainRange {
  Result result = Result::kSuccess;  ///< kNotFound: the address is in no allocation
  Address address = 0;
  std::size_t size_bytes = 0;
  bool in_reach = true;  ///< on the current context's device, or with peer access from it
};
std::optional<PlainRange> plain_range(Runtime& r, Address address);

/// The library's knowledge about one address, copied so that the mutex need not be held.
struct View {
  bool plain = false;   ///< in a plain allocation
  bool unused = false;  ///< in a mapping of the library, but in no allocation
  Plain allocation;
  Address mapping = 0;
  std::size_t mapped_bytes = 0;
  int device = 0;              ///< of the memory
  bool on_host = false;        ///< in host memory instead of on the device
  Context* context = nullptr;  ///< null for memory of a pool
  bool pooled = false;
  PoolHandle* pool = nullptr;
  unsigned handle_types = 0;  ///< of the application's own mapping
};

/// Writes an answer to a query of an attribute; true.
template <class T>
bool put(void* data, T value) {
  *static_cast<T*>(data) = value;
  return true;
}
/// Removes the type of descriptors from a driver's answer, unless the application requested it. The
/// width of the answer is not documented, so only its lowest byte is changed; it holds every
/// defined value.
inline void keep_requested_types(void* data, const View& view) {
  auto* lowest = static_cast<unsigned char*>(data);
  *lowest = static_cast<unsigned char>(*lowest & ~(kFileDescriptor & ~view.handle_types));
}

/// Returns the view of an address; nullopt if the library does not manage it. Takes the mutex.
std::optional<View> view_of(Runtime& r, Address address);

/// The range that copies and fills from an address may touch: to the end of its plain allocation,
/// rounded up to 512 bytes as in the driver. Takes the mutex.
bounds::Range range_around(Runtime& r, Address address);

/// Records the value of the sync-memops attribute that the application set. Takes the mutex.
void set_sync_memops(Runtime& r, Address address, bool value);

/// An address that the driver does not know, for queries on memory that is not allocated.
Address unknown_address();

/// Records that the tracked memory at `address`, if any, is reachable in ways that a detach cannot
/// undo. Takes the mutex.
void note_foreign(Runtime& r, Address address);

/// Register and unregister the application's host memory by the driver's call `driver`. A device
/// writes to it without page faults, so an agent that tracks changed pages must know it. Both take
/// the mutex.
Result register_host_memory(Runtime& r, const void* at, std::size_t size_bytes, RealCall driver);
Result unregister_host_memory(Runtime& r, const void* at, RealCall driver);

}  // namespace gcr::preload

// The library's only state object. The ABI that it interposes has no parameter for a context of
// ours, so there is one per process; its mutex guards everything in it.
//
// Threads take the mutex only inside the gate (or as the door's thread): when the gate is closed
// and empty, no thread that may be frozen holds it.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "preload/cuda/abi/driver_abi.h"
#include "preload/cuda/arena.h"
#include "preload/cuda/inventory.h"
#include "preload/cuda/pools.h"

namespace gcr::preload {

struct KnownContext {
  CUcontext context;
  int device;
  bool primary;
  std::size_t stack_limit_bytes = 0;  ///< while it is lowered: the value to restore
};

/// cuCtxEnablePeerAccess: `accessor` reaches what is allocated in `owner`.
struct PeerAccess {
  CUcontext accessor;
  int accessor_device;
  CUcontext owner;
};

/// A stream between cuStreamBeginCapture and cuStreamEndCapture. `thread` tells per-thread streams
/// of different threads apart and is 0 for all others.
struct Capture {
  CUstream stream;
  pthread_t thread;
};

/// What backing an allocation on a device needs; queried once.
struct DeviceFacts {
  bool asked = false;
  bool can_back = false;
  bool rdma_capable = false;
  std::size_t granularity_bytes = 0;
  std::size_t pitch_alignment_bytes = 0;  ///< 0 until a pitched allocation asked for it
  CUuuid uuid{};  ///< of the GPU behind the ordinal now: a migration changes it
};

/// What the application freed, no longer in the inventory, and the GPU may still use.
struct Freed {
  CUcontext context = nullptr;
  Mapping mapping;  ///< without physical memory: others are still in it
  ArenaRange range;
};

/// Freed during a capture, or in the order of a stream.
struct DeferredFree {
  Freed freed;
  CUevent done = nullptr;  ///< set when the stream has passed it; null: the context has to be idle
};

struct ProcessState {
  std::mutex mutex;
  /// Held while an arena or a stretch of a pool is made, before `mutex`: of the threads that need
  /// one, the first makes it.
  std::mutex growth;
  Inventory inventory;
  Arenas arenas;
  std::map<CUdeviceptr, Reservation> reservations;  ///< of dissolved arenas
  Pools pools;
  std::vector<KnownContext> contexts;
  std::vector<PeerAccess> peers;
  std::vector<Capture> captures;
  std::vector<DeferredFree> deferred_frees;
  /// What the application itself imported from other processes: handles with their references, and
  /// mapped addresses with their sizes. They are passed on to the driver unchanged.
  std::map<CUmemGenericAllocationHandle, std::uint32_t> imported_handles;
  std::map<CUdeviceptr, std::size_t> imported_mappings;
  /// What the application registered with the driver, for which its pages are pinned: addresses
  /// with their sizes. In it from before the driver's call until after the one that undoes it.
  std::map<std::uintptr_t, std::size_t> registered_memory;
  DeviceFacts devices[kMaxDevices];
  std::uint32_t fallbacks = 0;
  bool driver_ipc_exported = false;       ///< handles of allocations left with the driver
  std::uint32_t driver_ipc_imported = 0;  ///< the same, opened here
  bool detached = false;
};

/// The state; made at the first call, never destroyed: threads may use it while the process exits.
ProcessState& state();

}  // namespace gcr::preload

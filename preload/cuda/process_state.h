// The library's one state object. The ABI that it interposes has no place for a context of ours, so
// there is one per process; everything in it is guarded by its mutex.
//
// Threads take the mutex only inside the gate (or as the door's thread): when the gate is closed
// and empty, nobody who might be frozen holds it.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "preload/cuda/abi/driver_abi.h"
#include "preload/cuda/inventory.h"

namespace gcr::preload {

struct KnownContext {
  CUcontext context;
  int device;
  bool primary;
  std::size_t stack_limit_bytes = 0;  ///< while it is lowered: what it has to become again
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

/// What backing an allocation on a device takes; asked once.
struct DeviceFacts {
  bool asked = false;
  bool can_back = false;
  bool rdma_capable = false;
  std::size_t granularity_bytes = 0;
  std::size_t pitch_alignment_bytes = 0;  ///< 0 until a pitched allocation asked for it
  CUuuid uuid{};  ///< of the GPU behind the ordinal now: a migration changes it
};

/// Freed by the application, still mapped: during a capture, or in the order of a stream.
struct DeferredFree {
  Mapping mapping;
  CUevent done = nullptr;  ///< when the stream is past it; null: the context has to be idle
};

struct ProcessState {
  std::mutex mutex;
  Inventory inventory;
  std::vector<KnownContext> contexts;
  std::vector<PeerAccess> peers;
  std::vector<Capture> captures;
  std::vector<DeferredFree> deferred_frees;
  /// What the application itself imported from other processes: handles with their references, and
  /// mapped addresses with their sizes. Passed on to the driver as they are.
  std::map<CUmemGenericAllocationHandle, std::uint32_t> imported_handles;
  std::map<CUdeviceptr, std::size_t> imported_mappings;
  DeviceFacts devices[kMaxDevices];
  std::uint32_t fallbacks = 0;
  bool driver_ipc_exported = false;       ///< handles of allocations left with the driver
  std::uint32_t driver_ipc_imported = 0;  ///< the same, opened here
  bool detached = false;
};

/// The state; made at the first call, never destroyed: threads may use it while the process exits.
ProcessState& state();

/// In the child of a fork: a state as if nothing had ever been allocated. The old one is left
/// behind unused; its descriptors are the caller's to close first.
void reset_state_after_fork();

}  // namespace gcr::preload

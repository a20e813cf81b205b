// One runtime of the process, CUDA or HIP: its driver, and all that the library knows of it. The
// ABI that the library interposes has no parameter for a context of ours, so each face has one such
// object; its mutex guards everything in it.
//
// Threads take the mutex only inside the gate (or as the door's thread): when the gate is closed
// and empty, no thread that may be frozen holds it.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "preload/memory/arena.h"
#include "preload/memory/driver.h"
#include "preload/memory/inventory.h"
#include "preload/memory/pools.h"
#include "preload/memory/types.h"

namespace gcr::preload {

struct KnownContext {
  Context* context;
  int device;
  bool primary;
  std::size_t stack_limit_bytes = 0;  ///< while it is lowered: the value to restore
};

/// A part of a device that has a context of its own, which may be current as others may. What is
/// allocated there belongs to the device's primary context, and stays when the part is given up.
struct GreenContext {
  Context* context;
  Context* primary;
};

/// `accessor` reaches what is allocated in `owner`.
struct PeerAccess {
  Context* accessor;
  int accessor_device;
  Context* owner;
};

/// A stream between the begin and the end of its capture. `thread` tells per-thread streams of
/// different threads apart and is 0 for all others.
struct Capture {
  Stream* stream;
  pthread_t thread;
};

/// What the application freed, no longer in the inventory, and the GPU may still use.
struct Freed {
  Context* context = nullptr;
  Mapping mapping;  ///< without physical memory: others are still in it
  ArenaRange range;
};

/// Freed during a capture, or in the order of a stream.
struct DeferredFree {
  Freed freed;
  Event* done = nullptr;  ///< set when the stream has passed it; null: the context has to be idle
};

/// What the thread works on that waits for contexts. One at a time: a thread that has not ended
/// keeps it.
struct Waiting {
  static constexpr std::size_t kMostContexts = 256;

  Context* contexts[kMostContexts];
  std::size_t count = 0;
  std::atomic<Result> result{Result::kSuccess};
  std::atomic<std::uint32_t> running{0};  ///< futex
  pthread_t thread{};
  bool to_join = false;
};

struct Runtime {
  /// `number` tells it from others of the process: 0 or 1.
  Runtime(Driver& driver, unsigned number) : driver(driver), number(number), inventory(number) {}

  Driver& driver;
  const unsigned number;
  std::mutex mutex;
  /// Held while an arena or a stretch of a pool is made, before `mutex`: of the threads that need
  /// one, the first makes it.
  std::mutex growth;
  Inventory inventory;
  Arenas arenas;
  std::map<Address, Reservation> reservations;  ///< of dissolved arenas
  Pools pools;
  std::vector<KnownContext> contexts;
  std::vector<GreenContext> green_contexts;
  std::atomic<bool> any_green_context{false};
  std::vector<PeerAccess> peers;
  std::uint64_t copiers = 0;  ///< devices, by bit, that have access to all plain allocations
  std::vector<Capture> captures;
  std::vector<DeferredFree> deferred_frees;
  /// What the application itself imported from other processes: handles with their references, and
  /// mapped addresses with their sizes. They are passed on to the driver unchanged.
  std::map<Handle, std::uint32_t> imported_handles;
  std::map<Address, std::size_t> imported_mappings;
  /// What the application registered with the driver, for which its pages are pinned: addresses
  /// with their sizes. In it from before the driver's call until after the one that undoes it.
  std::map<std::uintptr_t, std::size_t> registered_memory;
  std::vector<Address> managed_variables;  ///< of modules, once their addresses were asked for
  DeviceFacts devices[kMaxDevices];
  std::uint32_t fallbacks = 0;
  std::uint64_t ipc_exporter = 0;         ///< of all its IPC records; 0: none was made yet
  bool driver_ipc_exported = false;       ///< handles of allocations left with the driver
  std::uint32_t driver_ipc_imported = 0;  ///< the same, opened here
  std::atomic<bool> used{false};          ///< initialised: a fork's child cannot use it
  bool pools_are_lost = false;            ///< memory of a pool that a control restore fails for
  std::atomic<bool> profiled{false};      ///< a profiler has attached itself to the driver
  bool detached = false;
  Waiting waiting;
};

/// At most so many runtimes are in a process, numbered from 0 on.
inline constexpr unsigned kMaxRuntimes = 2;

/// From now on the door answers for this runtime, too, and a fork's child lets go of it. Starts the
/// door; false if that should be tried again. Any thread, any number of times; `runtime` lives as
/// long as the process.
bool start(Runtime& runtime);

}  // namespace gcr::preload

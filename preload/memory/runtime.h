// One runtime of the process, CUDA or HIP: its driver, and the library's state. The interposed ABI
// has no parameter for an object of this library, so each face has one global Runtime; its mutex
// guards everything in it.
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

/// A green context: a context for a part of a device. Its allocations belong to the device's
/// primary context and outlive the green context.
struct GreenContext {
  Context* context;
  Context* primary;
};

/// Peer access: `accessor` may access allocations of `owner`.
struct PeerAccess {
  Context* accessor;
  int accessor_device;
  Context* owner;
};

/// A stream between the begin and the end of its capture. `thread` distinguishes the per-thread
/// streams of different threads; it is 0 for all other streams.
struct Capture {
  Stream* stream;
  pthread_t thread;
  bool operator==(const Capture&) const = default;
};

/// An allocation that the application freed: removed from the inventory, but the GPU may still use
/// it.
struct Freed {
  Context* context = nullptr;
  Mapping mapping;  ///< without physical memory if it still has other allocations
  ArenaRange range;
};

/// A free during a capture, or in the order of a stream, that is performed later.
struct DeferredFree {
  Freed freed;
  Event* done = nullptr;  ///< completes when the stream has passed the free; null: wait for context
};

/// State of the thread that waits for contexts. At most one such thread exists; it uses this object
/// until it has ended.
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
  /// `number` identifies the runtime in the process: 0 or 1.
  Runtime(Driver& driver, unsigned number) : driver(driver), number(number), inventory(number) {}

  Driver& driver;
  const unsigned number;
  std::mutex mutex;
  /// Held while an arena or a stretch of a pool is created, so that only one of the threads that
  /// need it creates it. Taken before `mutex`.
  std::mutex growth;
  Inventory inventory;
  Arenas arenas;
  std::map<Address, Reservation> reservations;  ///< addresses of dissolved arenas
  Pools pools;
  std::vector<KnownContext> contexts;
  std::vector<GreenContext> green_contexts;
  std::atomic<bool> any_green_context{false};
  std::vector<PeerAccess> peers;
  std::uint64_t copiers = 0;  ///< bit N: device N has access to all plain allocations
  std::vector<Capture> captures;
  std::vector<DeferredFree> deferred_frees;
  /// Untracked memory that the application imported from other processes: handles with their
  /// reference counts, and mapped addresses with their sizes. Calls on them go to the driver
  /// unchanged.
  std::map<Handle, std::uint32_t> imported_handles;
  std::map<Address, std::size_t> imported_mappings;
  /// Host memory that the application registered with the driver, whose pages are pinned: sizes by
  /// address. Entries exist from before the registering call until after the unregistering one.
  std::map<std::uintptr_t, std::size_t> registered_memory;
  std::vector<Address> managed_variables;  ///< of modules, once their addresses were looked up
  DeviceFacts devices[kMaxDevices];
  std::uint32_t fallbacks = 0;
  std::uint64_t ipc_exporter = 0;         ///< exporter number of all IPC records; 0: none yet
  bool driver_ipc_exported = false;       ///< the driver exported handles of its own allocations
  std::uint32_t driver_ipc_imported = 0;  ///< open IPC handles of the driver
  std::atomic<bool> used{false};          ///< initialised, so the child of a fork cannot use it
  bool has_unrestorable_pool = false;     ///< a control restore would fail
  std::atomic<bool> profiled{false};      ///< a profiler is attached to the driver
  bool detached = false;
  Waiting waiting;
};

/// The most runtimes of a process; they are numbered from 0.
inline constexpr unsigned kMaxRuntimes = 2;

/// Registers a runtime with the door and the fork handlers, and starts the door; false if that
/// should be tried again. Any thread, any number of times; `runtime` must live as long as the
/// process.
bool start(Runtime& runtime);

}  // namespace gcr::preload

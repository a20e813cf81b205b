// The one state object of the library (the ABI leaves no other place for it), and the entry of
// every exported function that touches that state.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "tests/softgpu/engine/call_gate.h"
#include "tests/softgpu/engine/device.h"
#include "tests/softgpu/engine/door.h"
#include "tests/softgpu/engine/event_thread.h"
#include "tests/softgpu/engine/memory.h"
#include "tests/softgpu/engine/module.h"
#include "tests/softgpu/engine/objects.h"

namespace gcr::softgpu {

struct PrimaryContext {
  std::shared_ptr<Context> context;
  int retained = 0;
  unsigned flags = 0;
};

struct MemoryPool {
  int ordinal = 0;
  std::uint64_t release_threshold = 0;
  int reuse[3] = {1, 1, 1};  ///< event dependencies, opportunistic, internal dependencies
  std::atomic<std::uint64_t> most_used = 0;
  bool is_default = false;
  bool exportable = false;
};

struct Process {
  /// The object; created on first use and never destroyed, since threads may outlive main.
  static Process& get();

  /// Opens the vendor's devices, starts threads and the door. Any thread, any number of times.
  Result init(Vendor vendor);

  /// The part of it that a process needs to be checkpointed.
  Result attend(Vendor vendor);

  /// In a forked child: if the parent had not used it, it starts afresh, else it is unusable.
  void forget_parent();

  DeviceTable devices;
  DeviceFile device_file;
  Memory memory{&devices};
  std::unique_ptr<Scheduler> scheduler;
  CallGate gate;
  EventThread event_thread;
  std::unique_ptr<Door> door;

  Handles<Context> contexts;
  Handles<Stream> streams;
  Handles<Event> events;
  Handles<Module> modules;
  Handles<Function> functions;
  Handles<Library> libraries;
  Handles<Kernel> kernels;
  Handles<Graph> graphs;
  Handles<GraphExec> graph_execs;
  Handles<MemoryPool> pools;

  std::mutex primary_mutex;
  std::array<PrimaryContext, kMaxDevices> primaries;
  std::array<std::shared_ptr<MemoryPool>, kMaxDevices> default_pools;
  std::array<std::shared_ptr<MemoryPool>, kMaxDevices> current_pools;
  std::atomic<unsigned long long> next_id = 1;
  std::atomic<int> captures = 0;  ///< streams being captured, whole process
  std::atomic<bool> ready = false;
  std::atomic<bool> forked = false;  ///< a child of a process that used the GPU: unusable
  /// A profiler has attached itself: a lock is refused from then on (measured: driver 580.159).
  std::atomic<bool> profiled = false;

 private:
  Result attend_locked(Vendor vendor);

  std::mutex init_mutex_;
};

/// The current context's stack of the calling thread.
std::vector<std::shared_ptr<Context>>& context_stack();
/// The current context, or null.
Context* current_context();

class CallScope {
 public:
  explicit CallScope(CallGate& gate) : gate_(gate) { gate_.enter(); }
  ~CallScope() { gate_.leave(); }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  CallGate& gate_;
};

/// Runs `body(process)` inside the gate; needs init(). Exceptions become results.
template <class Body>
Result run_call(Body&& body) noexcept {
  Process& process = Process::get();
  if (!process.ready || process.forked) return Result::kNotInitialized;
  const CallScope scope(process.gate);
  try {
    return body(process);
  } catch (const std::bad_alloc&) {
    return Result::kOutOfMemory;
  } catch (...) {
    return Result::kUnknown;
  }
}

/// How a function interprets a null stream: for some functions it means the thread's own.
enum class DefaultStream { kLegacy, kPerThread };

/// The stream behind a handle as seen from the current context; null if there is none.
std::shared_ptr<Stream> resolve_stream(Process& process, Context& context, const void* handle,
                                       DefaultStream flavour);

/// How the calling thread treats captures of others; returns the previous value.
CaptureMode exchange_capture_mode(CaptureMode mode);

/// Result::kStreamCaptureUnsupported if the calling thread may not allocate, synchronise and so
/// on because of a capture; that capture is then invalid.
Result refuse_if_capturing(Process& process);

}  // namespace gcr::softgpu

// The one state object of the library (the ABI leaves no other place for it), and what every
// exported function goes through before it touches that state.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "tests/softgpu/call_gate.h"
#include "tests/softgpu/device.h"
#include "tests/softgpu/door.h"
#include "tests/softgpu/memory.h"
#include "tests/softgpu/module.h"
#include "tests/softgpu/objects.h"

/// Marks a function of the driver's interface: the only symbols that the library shows.
#define SOFTGPU_API extern "C" __attribute__((visibility("default"))) CUresult

namespace gcr::softgpu {

struct PrimaryContext {
  std::shared_ptr<Context> context;
  int retained = 0;
  unsigned flags = 0;
};

struct MemoryPool {
  int ordinal = 0;
  cuuint64_t release_threshold = 0;
  int reuse[3] = {1, 1, 1};  ///< CU_MEMPOOL_ATTR_REUSE_…, in their order
  std::atomic<cuuint64_t> most_used = 0;
  bool is_default = false;
};

struct Process {
  /// The object; made on first use and never destroyed, since threads may outlive main.
  static Process& get();

  /// cuInit. Opens devices, starts threads and the door. Any thread, any number of times.
  CUresult init();

  DeviceTable devices;
  DeviceFile device_file;
  Memory memory{&devices};
  std::unique_ptr<Scheduler> scheduler;
  CallGate gate;
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

 private:
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

/// Runs `body(process)` inside the gate; needs cuInit. Exceptions become results.
template <class Body>
CUresult call(Body&& body) noexcept {
  Process& process = Process::get();
  if (!process.ready || process.forked) return CUDA_ERROR_NOT_INITIALIZED;
  const CallScope scope(process.gate);
  try {
    return body(process);
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

/// Runs `body(process, context)` as call() does; needs a current context that had no fault.
template <class Body>
CUresult call_in_context(Body&& body) noexcept {
  return call([&](Process& process) -> CUresult {
    Context* context = current_context();
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (const CUresult fault = context->fault) return fault;
    return body(process, *context);
  });
}

/// How a function takes a null stream: the `_ptsz`/`_ptds` variants mean the thread's own.
enum class DefaultStream { kLegacy, kPerThread };

/// The stream behind a handle as seen from the current context; null if there is none.
std::shared_ptr<Stream> resolve_stream(Process& process, Context& context, CUstream handle,
                                       DefaultStream flavour);

/// The operation that launches a function (a CUfunction or a CUkernel); arguments are copied.
CUresult make_launch(Process& process, Context& context, const CUlaunchConfig& config,
                     const void* function_handle, void** parameters, void** extra,
                     Operation* operation);

/// How the calling thread treats captures of others; returns what it was before.
CUstreamCaptureMode exchange_capture_mode(CUstreamCaptureMode mode);

/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if the calling thread may not allocate, synchronise and so
/// on because of a capture; that capture is then invalid.
CUresult refuse_if_capturing(Process& process);

}  // namespace gcr::softgpu

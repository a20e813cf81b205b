// The entry of every function of the HIP face.
#pragma once

#include "preload/hip/abi/hip_abi.h"
#include "tests/softgpu/engine/contexts.h"
#include "tests/softgpu/engine/process.h"

/// Marks a function of the HIP interface: the only symbols that the library exports. They may be
/// interposed, as HIP's are: where HIP calls one of its own by name, this library does.
#define SOFTHIP_EXPORT extern "C" __attribute__((visibility("default")))
#define SOFTHIP_API SOFTHIP_EXPORT hipError_t

/// Functions that use the default stream exist twice: `_spt` is for programs with a per-thread
/// default stream. `implementation` takes the kind of default stream before the other arguments.
#define SOFTHIP_BOTH(name, implementation, parameters, ...)                                   \
  SOFTHIP_API name parameters { return implementation(DefaultStream::kLegacy, __VA_ARGS__); } \
  SOFTHIP_API name##_spt parameters {                                                         \
    return implementation(DefaultStream::kPerThread, __VA_ARGS__);                            \
  }

namespace gcr::softgpu::hip {

// The functions that the table knows, so that the compiler checks the definitions.
#define GCR_HIP_FUNCTION(result, symbol, public_name, since, flavour, policy, params, args) \
  SOFTHIP_EXPORT result symbol params;
#include "preload/hip/hip_api.def"

inline constexpr char kArchitecture[] = "gfx942";

/// The simulated ROCm release, as 502 for 5.2: SOFTHIP_RELEASE, else 6.2.
int release();

hipError_t to_hip(Result result);
inline hipError_t to_hip(hipError_t result) { return result; }
/// Stores the error that hipGetLastError returns from now on in this thread; returns `result`.
hipError_t remember(hipError_t result);

/// Initialises HIP unless it is initialised.
Result start() noexcept;

/// The calling thread's device, by ordinal.
int& current_device();
/// The current device's only context, created on the first request.
std::shared_ptr<Context> current_context_of(Process& process);

/// Runs `body(process)` inside the gate; initialises HIP if necessary. Exceptions become results;
/// so does the return value of `body`, a Result or a hipError_t.
template <class Body>
hipError_t call(Body&& body) noexcept {
  hipError_t answer = hipErrorUnknown;
  Result failed = start();
  if (!failed) {
    failed = run_call([&](Process& process) -> Result {
      answer = to_hip(body(process));
      return Result::kSuccess;
    });
  }
  return remember(failed ? to_hip(failed) : answer);
}

/// Runs `body(process, context)` as call() does, in the current device's context, which must have
/// no fault.
template <class Body>
hipError_t call_in_context(Body&& body) noexcept {
  return call([&](Process& process) -> hipError_t {
    const auto context = current_context_of(process);
    if (const Result fault = context->fault) return to_hip(fault);
    return to_hip(body(process, *context));
  });
}

/// Runs `body(process, stream)`; hipErrorContextIsDestroyed for a stream that HIP does not know.
template <class Body>
hipError_t call_in_stream(DefaultStream flavour, hipStream_t handle, Body&& body) noexcept {
  return call_in_context([&](Process& process, Context& context) -> hipError_t {
    const auto stream = resolve_stream(process, context, handle, flavour);
    if (!stream) return hipErrorContextIsDestroyed;
    return to_hip(body(process, stream));
  });
}

/// A handle or an address of the program as a number, and back.
template <class T>
std::uintptr_t address_of(T* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}
inline void* pointer_to(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

/// An object of the engine as a HIP handle of it.
template <class Handle, class T>
Handle handle_of(const T* object) {
  return reinterpret_cast<Handle>(const_cast<T*>(object));
}

}  // namespace gcr::softgpu::hip

// The entry of every function of the CUDA face.
#pragma once

#include "preload/cuda/abi/driver_abi.h"
#include "tests/softgpu/engine/process.h"

/// Marks a function of the driver's interface: the only symbols that the library exports.
#define SOFTGPU_API extern "C" __attribute__((visibility("default"))) CUresult

namespace gcr::softgpu {

template <>
inline constexpr bool is_face_result<CUresult> = true;

/// Runs `body(process)` inside the gate; needs cuInit. Exceptions become results.
template <class Body>
CUresult call(Body&& body) noexcept {
  return run_call(body);
}

/// Runs `body(process, context)` as call() does; needs a current context without a fault.
template <class Body>
CUresult call_in_context(Body&& body) noexcept {
  return call([&](Process& process) -> CUresult {
    Context* context = current_context();
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (const Result fault = context->fault) return fault;
    return body(process, *context);
  });
}

}  // namespace gcr::softgpu

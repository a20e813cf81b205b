// Contexts: primary and created, the stack of the current one, limits, peer access.
#include "tests/softgpu/cuda/face.h"
#include "tests/softgpu/engine/contexts.h"
#include "tests/softgpu/engine/streams.h"

namespace gcr::softgpu {
namespace {

constexpr unsigned kApiVersion = 3020;

bool blocks(const Context& context) {
  return (context.flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC;
}

CUresult create(CUcontext* handle, unsigned flags, CUdevice ordinal) {
  return call([&](Process& process) {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (process.devices.at(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    auto context = make_context(process, ordinal, flags, false);
    *handle = reinterpret_cast<CUcontext>(context.get());
    context_stack().push_back(std::move(context));
    return CUDA_SUCCESS;
  });
}

}  // namespace

SOFTGPU_API cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
  return create(context, flags, device);
}

SOFTGPU_API cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam*, int, unsigned flags,
                           CUdevice device) {
  return create(context, flags, device);
}

SOFTGPU_API cuCtxCreate_v4(CUcontext* context, CUctxCreateParams*, unsigned flags,
                           CUdevice device) {
  return create(context, flags, device);
}

SOFTGPU_API cuCtxDestroy_v2(CUcontext handle) {
  return call([&](Process& process) {
    const auto context = process.contexts.get(handle);
    if (!context || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
    end_context(process, context);
    auto& stack = context_stack();
    if (!stack.empty() && stack.back() == context) stack.pop_back();
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuCtxPushCurrent_v2(CUcontext handle) {
  return call([&](Process& process) {
    auto context = process.contexts.get(handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    context_stack().push_back(std::move(context));
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuCtxPopCurrent_v2(CUcontext* handle) {
  return call([&](Process&) {
    auto& stack = context_stack();
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (handle != nullptr) *handle = reinterpret_cast<CUcontext>(stack.back().get());
    stack.pop_back();
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuCtxSetCurrent(CUcontext handle) {
  return call([&](Process& process) {
    auto& stack = context_stack();
    if (handle == nullptr) {
      if (!stack.empty()) stack.pop_back();
      return CUDA_SUCCESS;
    }
    auto context = process.contexts.get(handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!stack.empty()) stack.pop_back();
    stack.push_back(std::move(context));
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuCtxGetCurrent(CUcontext* handle) {
  return call([&](Process&) {
    *handle = reinterpret_cast<CUcontext>(current_context());
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuCtxGetDevice(CUdevice* device) {
  return call_in_context([&](Process&, Context& context) {
    *device = context.ordinal;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuCtxGetFlags(unsigned* flags) {
  return call_in_context([&](Process&, Context& context) {
    *flags = context.flags;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuCtxSetFlags(unsigned flags) {
  return call_in_context([&](Process&, Context& context) {
    context.flags = flags;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuCtxGetId(CUcontext handle, unsigned long long* id) {
  return call([&](Process& process) {
    const Context* context =
        handle != nullptr ? process.contexts.get(handle).get() : current_context();
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *id = context->id;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuCtxGetApiVersion(CUcontext, unsigned* version) {
  return call([&](Process&) {
    *version = kApiVersion;
    return CUDA_SUCCESS;
  });
}

// Green contexts: the whole device works, regardless of the described part.
SOFTGPU_API cuGreenCtxCreate(CUgreenCtx* handle, CUdevResourceDesc, CUdevice ordinal, unsigned) {
  return call([&](Process& process) {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (process.devices.at(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    const auto context = make_context(process, ordinal, 0, false);
    context->green_of = retain_primary(process, ordinal);
    *handle = reinterpret_cast<CUgreenCtx>(context.get());
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuCtxFromGreenCtx(CUcontext* handle, CUgreenCtx green) {
  return call([&](Process& process) {
    const auto context = process.contexts.get(green);
    if (!context || !context->green_of) return CUDA_ERROR_INVALID_CONTEXT;
    *handle = reinterpret_cast<CUcontext>(context.get());
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuGreenCtxDestroy(CUgreenCtx green) {
  return call([&](Process& process) -> CUresult {
    const auto context = process.contexts.get(green);
    if (!context || !context->green_of) return CUDA_ERROR_INVALID_CONTEXT;
    end_context(process, context);
    return release_primary(process, context->ordinal, false);
  });
}

SOFTGPU_API cuGreenCtxStreamCreate(CUstream* handle, CUgreenCtx green, unsigned flags,
                                   int priority) {
  return call([&](Process& process) {
    const auto context = process.contexts.get(green);
    if (!context || !context->green_of) return CUDA_ERROR_INVALID_CONTEXT;
    *handle = reinterpret_cast<CUstream>(create_stream(process, *context, flags, priority).get());
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuCtxSynchronize() {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    if (const CUresult refused = refuse_if_capturing(process)) return refused;
    for (const auto& other : process.contexts.all()) {
      if (other->green_of.get() == &context) other->synchronize();
    }
    return context.synchronize();
  });
}

SOFTGPU_API cuCtxGetLimit(std::size_t* value, CUlimit limit) {
  return call_in_context([&](Process&, Context& context) {
    if (static_cast<std::size_t>(limit) >= context.limits.size()) {
      return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    *value = context.limits[limit];
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuCtxSetLimit(CUlimit limit, std::size_t value) {
  return call_in_context([&](Process& process, Context& context) {
    if (static_cast<std::size_t>(limit) >= context.limits.size()) {
      return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    // Its memory changes when the context is idle.
    if (limit == CU_LIMIT_STACK_SIZE) {
      if (blocks(context)) process.event_thread.wait();
      const std::lock_guard lock(context.mutex);
      context.stack_unsettled = true;
    }
    context.limits[limit] = value;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return call_in_context([&](Process&, Context&) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = kGreatestPriority;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuCtxGetCacheConfig(CUfunc_cache* config) {
  return call_in_context([&](Process&, Context& context) {
    *config = static_cast<CUfunc_cache>(context.cache);
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuCtxSetCacheConfig(CUfunc_cache config) {
  return call_in_context([&](Process&, Context& context) {
    context.cache = config;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuCtxEnablePeerAccess(CUcontext handle, unsigned flags) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const auto peer = process.contexts.get(handle);
    if (!peer || peer.get() == &context) return CUDA_ERROR_INVALID_CONTEXT;
    if (peer->ordinal == context.ordinal) return CUDA_ERROR_INVALID_DEVICE;
    return enable_peer_access(context, *peer);
  });
}

SOFTGPU_API cuCtxDisablePeerAccess(CUcontext handle) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    const auto peer = process.contexts.get(handle);
    if (!peer) return CUDA_ERROR_INVALID_CONTEXT;
    return disable_peer_access(context, *peer);
  });
}

SOFTGPU_API cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice ordinal) {
  return call([&](Process& process) {
    if (process.devices.at(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *handle = reinterpret_cast<CUcontext>(retain_primary(process, ordinal).get());
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
  return call([&](Process& process) { return release_primary(process, ordinal, false); });
}

SOFTGPU_API cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
  return call([&](Process& process) { return release_primary(process, ordinal, true); });
}

SOFTGPU_API cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned flags) {
  return call([&](Process& process) {
    if (process.devices.at(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    std::lock_guard lock(process.primary_mutex);
    PrimaryContext& primary = process.primaries[ordinal];
    primary.flags = flags;
    if (primary.context) primary.context->flags = flags;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned* flags, int* active) {
  return call([&](Process& process) {
    if (process.devices.at(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    std::lock_guard lock(process.primary_mutex);
    *flags = process.primaries[ordinal].flags;
    *active = process.primaries[ordinal].context != nullptr ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

}  // namespace gcr::softgpu

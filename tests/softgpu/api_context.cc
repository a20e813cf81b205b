// Contexts: primary and created, the stack of the current one, limits, peer access.
#include <algorithm>
#include <set>

#include "tests/softgpu/process.h"

namespace gcr::softgpu {
namespace {

constexpr unsigned kApiVersion = 3020;

std::shared_ptr<Context> make_context(Process& process, int ordinal, unsigned flags, bool primary) {
  auto context = std::make_shared<Context>();
  context->ordinal = ordinal;
  context->flags = flags;
  context->primary = primary;
  context->id = process.next_id++;
  context->limits[CU_LIMIT_STACK_SIZE] = 1024;
  context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1024 * 1024;
  context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 * 1024 * 1024;
  context->legacy = std::make_shared<Stream>();
  context->legacy->context = context;
  context->legacy->kind = StreamKind::kLegacy;
  context->legacy->id = process.next_id++;
  return process.contexts.add(context);
}

/// Ends a context: waits for its work and frees what it owns. Threads where it is still current
/// learn of it by CUDA_ERROR_CONTEXT_IS_DESTROYED.
void end_context(Process& process, const std::shared_ptr<Context>& context) {
  context->synchronize();
  context->fault = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  process.contexts.take(context.get());
  for (const auto& other : process.contexts.all()) {
    std::lock_guard lock(other->mutex);
    other->peers.erase(context.get());
  }
  for (const auto& module : process.modules.all()) {
    if (module->context != context.get()) continue;
    unload_module(process, *module);
    process.modules.take(module.get());
  }
  for (const auto& library : process.libraries.all()) {
    std::lock_guard lock(library->mutex);
    library->modules.erase(context.get());
  }
  process.memory.free_all_of(context.get());
  std::lock_guard lock(context->mutex);
  for (const auto& stream : context->created) process.streams.take(stream.get());
  context->created.clear();
  context->per_thread.clear();
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

CUresult release_primary(CUdevice ordinal, bool whole) {
  return call([&](Process& process) {
    if (process.devices.at(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    std::lock_guard lock(process.primary_mutex);
    PrimaryContext& primary = process.primaries[ordinal];
    if (primary.retained == 0) return whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    if (!whole && --primary.retained > 0) return CUDA_SUCCESS;
    primary.retained = 0;
    end_context(process, primary.context);
    primary.context.reset();
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

SOFTGPU_API cuCtxSynchronize() {
  return call_in_context([&](Process& process, Context& context) {
    if (const CUresult refused = refuse_if_capturing(process)) return refused;
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
  return call_in_context([&](Process&, Context& context) {
    if (static_cast<std::size_t>(limit) >= context.limits.size()) {
      return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    context.limits[limit] = value;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return call_in_context([&](Process&, Context&) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuCtxGetCacheConfig(CUfunc_cache* config) {
  return call_in_context([&](Process&, Context& context) {
    *config = context.cache;
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
  return call_in_context([&](Process& process, Context& context) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const auto peer = process.contexts.get(handle);
    if (!peer || peer.get() == &context) return CUDA_ERROR_INVALID_CONTEXT;
    if (peer->ordinal == context.ordinal) return CUDA_ERROR_INVALID_DEVICE;
    std::lock_guard lock(context.mutex);
    return context.peers.insert(peer.get()).second ? CUDA_SUCCESS
                                                   : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  });
}

SOFTGPU_API cuCtxDisablePeerAccess(CUcontext handle) {
  return call_in_context([&](Process& process, Context& context) {
    const auto peer = process.contexts.get(handle);
    if (!peer) return CUDA_ERROR_INVALID_CONTEXT;
    std::lock_guard lock(context.mutex);
    return context.peers.erase(peer.get()) == 1 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  });
}

SOFTGPU_API cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice ordinal) {
  return call([&](Process& process) {
    if (process.devices.at(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    std::lock_guard lock(process.primary_mutex);
    PrimaryContext& primary = process.primaries[ordinal];
    if (!primary.context) primary.context = make_context(process, ordinal, primary.flags, true);
    ++primary.retained;
    *handle = reinterpret_cast<CUcontext>(primary.context.get());
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
  return release_primary(ordinal, false);
}

SOFTGPU_API cuDevicePrimaryCtxReset_v2(CUdevice ordinal) { return release_primary(ordinal, true); }

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

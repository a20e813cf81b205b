// Allocation, addresses, host memory, legacy IPC, stream-ordered pools.
#include "src/base/units.h"
#include "tests/softgpu/cuda/stream_api.h"
#include "tests/softgpu/engine/pools.h"

namespace gcr::softgpu {
namespace {

constexpr std::size_t kPitchAlignment = 512;

CUresult allocate(CUdeviceptr* address, std::size_t bytes) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult refused = refuse_if_capturing(process)) return refused;
    std::uintptr_t start = 0;
    Context* const owner = context.green_of ? context.green_of.get() : &context;
    const CUresult result =
        process.memory.allocate(context.ordinal, bytes, owner, RangeKind::kDriver, nullptr, &start);
    if (result == CUDA_SUCCESS) *address = start;
    return result;
  });
}

CUresult allocate_host(void** address, std::size_t bytes, unsigned flags) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    if (const CUresult refused = refuse_if_capturing(process)) return refused;
    std::uintptr_t start = 0;
    const CUresult result =
        process.memory.allocate_host(bytes, &context, RangeKind::kHost, flags, &start);
    if (result == CUDA_SUCCESS) *address = reinterpret_cast<void*>(start);
    return result;
  });
}

CUresult allocate_from_pool(DefaultStream flavour, CUdeviceptr* address, std::size_t bytes,
                            CUmemoryPool pool, CUstream handle) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    const auto stream = resolve_stream(process, context, handle, flavour);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::uintptr_t start = 0;
    const CUresult result = allocate_in_stream(process, context, *stream, bytes, pool, &start);
    if (start != 0) *address = start;
    return result;
  });
}

CUresult allocate_async(DefaultStream flavour, CUdeviceptr* address, std::size_t bytes,
                        CUstream stream) {
  return allocate_from_pool(flavour, address, bytes, nullptr, stream);
}

CUresult free_async(DefaultStream flavour, CUdeviceptr address, CUstream handle) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    const auto stream = resolve_stream(process, context, handle, flavour);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    return free_in_stream(process, *stream, address);
  });
}

}  // namespace

SOFTGPU_API cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes) {
  return allocate(address, bytes);
}

SOFTGPU_API cuMemAllocPitch_v2(CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                               std::size_t height, unsigned element) {
  if (pitch == nullptr || (element != 4 && element != 8 && element != 16)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::size_t row = round_up(width, kPitchAlignment);
  const CUresult result = allocate(address, row * height);
  if (result == CUDA_SUCCESS) *pitch = row;
  return result;
}

SOFTGPU_API cuMemAllocManaged(CUdeviceptr* address, std::size_t bytes, unsigned flags) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    if (const CUresult refused = refuse_if_capturing(process)) return refused;
    std::uintptr_t start = 0;
    const CUresult result =
        process.memory.allocate_host(bytes, &context, RangeKind::kManaged, flags, &start);
    if (result == CUDA_SUCCESS) *address = start;
    return result;
  });
}

SOFTGPU_API cuMemFree_v2(CUdeviceptr address) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    if (address == 0) return CUDA_SUCCESS;
    if (const CUresult refused = refuse_if_capturing(process)) return refused;
    // Work in flight may use the memory: a real driver waits for it, too.
    if (const CUresult fault = context.synchronize()) return fault;
    return process.memory.free(address, kFreeable);
  });
}

SOFTGPU_API cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return call_in_context([&](Process& process, Context& context) {
    const Device& device = process.devices.devices[context.ordinal];
    if (free != nullptr) *free = device.free_bytes();
    if (total != nullptr) *total = device.total_bytes;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuMemGetAddressRange_v2(CUdeviceptr* start, std::size_t* bytes, CUdeviceptr address) {
  return call_in_context([&](Process& process, Context& context) {
    const RangeInfo range = process.memory.find(address);
    if (range.bytes == 0) return CUDA_ERROR_NOT_FOUND;
    if (range.kind == RangeKind::kDriver && range.ordinal != context.ordinal &&
        !context.reaches(range.context)) {
      return CUDA_ERROR_NOT_FOUND;
    }
    if (start != nullptr) *start = range.start;
    if (bytes != nullptr) *bytes = range.bytes;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuMemAllocHost_v2(void** address, std::size_t bytes) {
  return allocate_host(address, bytes, 0);
}

SOFTGPU_API cuMemHostAlloc(void** address, std::size_t bytes, unsigned flags) {
  return allocate_host(address, bytes, flags);
}

SOFTGPU_API cuMemFreeHost(void* address) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    if (const CUresult fault = context.synchronize()) return fault;
    return process.memory.free(reinterpret_cast<std::uintptr_t>(address), bit(RangeKind::kHost));
  });
}

SOFTGPU_API cuMemHostRegister_v2(void* address, std::size_t bytes, unsigned flags) {
  return call_in_context([&](Process& process, Context& context) {
    return process.memory.register_host(reinterpret_cast<std::uintptr_t>(address), bytes, &context,
                                        flags);
  });
}

SOFTGPU_API cuMemHostUnregister(void* address) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    if (const CUresult fault = context.synchronize()) return fault;
    const CUresult result = process.memory.free(reinterpret_cast<std::uintptr_t>(address),
                                                bit(RangeKind::kHostForeign));
    return result == CUDA_SUCCESS ? result : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  });
}

SOFTGPU_API cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* address, unsigned) {
  return call_in_context([&](Process& process, Context&) {
    const auto host = reinterpret_cast<std::uintptr_t>(address);
    const RangeInfo range = process.memory.find(host);
    if (range.bytes == 0 || !range.on_host()) return CUDA_ERROR_INVALID_VALUE;
    *device = host;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuMemHostGetFlags(unsigned* flags, void* address) {
  return call_in_context([&](Process& process, Context&) {
    const RangeInfo range = process.memory.find(reinterpret_cast<std::uintptr_t>(address));
    if (range.bytes == 0 || !range.on_host()) return CUDA_ERROR_INVALID_VALUE;
    *flags = range.host_flags;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  return call_in_context([&](Process& process, Context&) -> CUresult {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return process.memory.ipc_handle(address, handle->reserved);
  });
}

SOFTGPU_API cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    if (address == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::uintptr_t start = 0;
    const CUresult result = process.memory.ipc_open(handle.reserved, &context, &start);
    if (result == CUDA_SUCCESS) *address = start;
    return result;
  });
}

SOFTGPU_API cuIpcCloseMemHandle(CUdeviceptr address) {
  return call_in_context([&](Process& process, Context& context) -> CUresult {
    if (const CUresult fault = context.synchronize()) return fault;
    return process.memory.ipc_close(address);
  });
}

SOFTGPU_BOTH(cuMemAllocAsync, cuMemAllocAsync_ptsz, allocate_async,
             (CUdeviceptr * address, std::size_t bytes, CUstream stream), address, bytes, stream)
SOFTGPU_BOTH(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz, allocate_from_pool,
             (CUdeviceptr * address, std::size_t bytes, CUmemoryPool pool, CUstream stream),
             address, bytes, pool, stream)
SOFTGPU_BOTH(cuMemFreeAsync, cuMemFreeAsync_ptsz, free_async,
             (CUdeviceptr address, CUstream stream), address, stream)

}  // namespace gcr::softgpu

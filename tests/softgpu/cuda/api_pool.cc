// Memory pools. Memory of a pool is allocated on request and released when freed: the release
// threshold is stored, but has no effect.
#include <fcntl.h>
#include <sys/mman.h>

#include <cstring>

#include "tests/softgpu/cuda/face.h"
#include "tests/softgpu/engine/pools.h"

namespace gcr::softgpu {
namespace {

CUmemoryPool handle_of(const std::shared_ptr<MemoryPool>& pool) {
  return reinterpret_cast<CUmemoryPool>(pool.get());
}

CUresult device_pool(CUmemoryPool* pool, CUdevice ordinal, bool current) {
  return call([&](Process& process) {
    if (process.devices.at(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    const auto& pools = current ? process.current_pools : process.default_pools;
    *pool = handle_of(pools[ordinal]);
    return CUDA_SUCCESS;
  });
}

}  // namespace

SOFTGPU_API cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice ordinal) {
  return device_pool(pool, ordinal, false);
}

SOFTGPU_API cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice ordinal) {
  return device_pool(pool, ordinal, true);
}

SOFTGPU_API cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool) {
  return call([&](Process& process) { return set_current_pool(process, ordinal, pool); });
}

SOFTGPU_API cuMemPoolCreate(CUmemoryPool* handle, const CUmemPoolProps* properties) {
  return call([&](Process& process) {
    const CUmemLocation& location = properties->location;
    const bool on_host = location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    const bool on_device =
        location.type == CU_MEM_LOCATION_TYPE_DEVICE && process.devices.at(location.id) != nullptr;
    if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED || (!on_host && !on_device)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    constexpr int kExportable = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if ((properties->handleTypes & ~kExportable) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    const auto pool = create_pool(process, on_host ? kHostOrdinal : location.id);
    pool->exportable = (properties->handleTypes & kExportable) != 0;
    *handle = handle_of(pool);
    return CUDA_SUCCESS;
  });
}

// An export names a pool without its memory: this process cannot allocate from it.
SOFTGPU_API cuMemPoolExportToShareableHandle(void* descriptor, CUmemoryPool handle,
                                             CUmemAllocationHandleType type, unsigned long long) {
  return call([&](Process& process) {
    const auto pool = process.pools.get(handle);
    if (!pool || !pool->exportable || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const int file = ::memfd_create("softgpu-pool", MFD_CLOEXEC);
    if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    std::memcpy(descriptor, &file, sizeof(file));
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuMemPoolImportFromShareableHandle(CUmemoryPool* handle, void* descriptor,
                                               CUmemAllocationHandleType type, unsigned long long) {
  return call([&](Process& process) {
    const int file = static_cast<int>(reinterpret_cast<std::intptr_t>(descriptor));
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || ::fcntl(file, F_GETFD) < 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *handle = handle_of(create_pool(process, 0));
    process.memory.has_imported_pool = true;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuMemPoolDestroy(CUmemoryPool pool) {
  return call([&](Process& process) { return destroy_pool(process, pool); });
}

SOFTGPU_API cuMemPoolTrimTo(CUmemoryPool handle, std::size_t) {
  return call([&](Process& process) {
    return process.pools.get(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

SOFTGPU_API cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute what, void* value) {
  return call([&](Process& process) {
    return set_pool_attribute(process, pool, static_cast<PoolAttribute>(what), value);
  });
}

SOFTGPU_API cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute what, void* value) {
  return call([&](Process& process) {
    return get_pool_attribute(process, pool, static_cast<PoolAttribute>(what), value);
  });
}

SOFTGPU_API cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute what, void* value) {
  return call([&](Process& process) {
    if (process.devices.at(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (what != CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) return CUDA_ERROR_NOT_SUPPORTED;
    const cuuint64_t bytes = process.memory.bytes_of_graphs(ordinal);
    std::memcpy(value, &bytes, sizeof(bytes));
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc*, std::size_t) {
  return call([&](Process& process) {
    return process.pools.get(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

}  // namespace gcr::softgpu

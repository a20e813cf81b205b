// Memory pools. Memory of a pool is allocated when asked for and given back when freed: the release
// threshold is remembered, not acted upon.
#include <cstring>

#include "tests/softgpu/process.h"

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

SOFTGPU_API cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle) {
  return call([&](Process& process) {
    const auto pool = process.pools.get(handle);
    if (!pool || process.devices.at(ordinal) == nullptr || pool->ordinal != ordinal) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    process.current_pools[ordinal] = pool;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuMemPoolCreate(CUmemoryPool* handle, const CUmemPoolProps* properties) {
  return call([&](Process& process) {
    if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        process.devices.at(properties->location.id) == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
    auto pool = std::make_shared<MemoryPool>();
    pool->ordinal = properties->location.id;
    *handle = handle_of(process.pools.add(std::move(pool)));
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuMemPoolDestroy(CUmemoryPool handle) {
  return call([&](Process& process) {
    const auto pool = process.pools.get(handle);
    if (!pool || pool->is_default) return CUDA_ERROR_INVALID_VALUE;
    process.pools.take(handle);
    if (process.current_pools[pool->ordinal] == pool) {
      process.current_pools[pool->ordinal] = process.default_pools[pool->ordinal];
    }
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuMemPoolTrimTo(CUmemoryPool handle, std::size_t) {
  return call([&](Process& process) {
    return process.pools.get(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

SOFTGPU_API cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute what, void* value) {
  return call([&](Process& process) {
    const auto pool = process.pools.get(handle);
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    switch (what) {
      case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        std::memcpy(&pool->reuse[what - 1], value, sizeof(int));
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        std::memcpy(&pool->release_threshold, value, sizeof(cuuint64_t));
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: {
        cuuint64_t zero = 0;
        std::memcpy(&zero, value, sizeof(zero));
        if (zero != 0) return CUDA_ERROR_INVALID_VALUE;
        pool->most_used = process.memory.bytes_of_pool(handle);
        return CUDA_SUCCESS;
      }
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

SOFTGPU_API cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute what, void* value) {
  return call([&](Process& process) -> CUresult {
    if (const CUresult refused = refuse_if_capturing(process)) return refused;
    const auto pool = process.pools.get(handle);
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    switch (what) {
      case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        std::memcpy(value, &pool->release_threshold, sizeof(cuuint64_t));
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        std::memcpy(value, &pool->reuse[what - 1], sizeof(int));
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: {
        const cuuint64_t most = pool->most_used;
        std::memcpy(value, &most, sizeof(most));
        return CUDA_SUCCESS;
      }
      case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: {
        const cuuint64_t used = process.memory.bytes_of_pool(handle);
        std::memcpy(value, &used, sizeof(used));
        return CUDA_SUCCESS;
      }
      default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
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

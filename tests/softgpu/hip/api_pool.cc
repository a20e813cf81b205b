// Stream-ordered memory and its pools. The release threshold is stored, but has no effect.
#include <cstring>

#include "tests/softgpu/engine/pools.h"
#include "tests/softgpu/hip/face.h"

namespace gcr::softgpu::hip {
namespace {

hipError_t allocate_from(void** address, std::size_t bytes, hipMemPool_t pool, hipStream_t handle) {
  return call_in_stream(DefaultStream::kLegacy, handle,
                        [&](Process& process, const std::shared_ptr<Stream>& stream) -> hipError_t {
                          if (address == nullptr) return hipErrorInvalidValue;
                          *address = nullptr;
                          if (bytes == 0) return hipSuccess;
                          std::uintptr_t start = 0;
                          const Result result = allocate_in_stream(process, *stream->context,
                                                                   *stream, bytes, pool, &start);
                          if (start != 0) *address = pointer_to(start);
                          return to_hip(result);
                        });
}

hipError_t pool_of_device(hipMemPool_t* pool, int ordinal, bool current) {
  return call([&](Process& process) {
    if (pool == nullptr) return hipErrorInvalidValue;
    if (!process.devices.has(ordinal)) return hipErrorInvalidDevice;
    const auto& pools = current ? process.current_pools : process.default_pools;
    *pool = handle_of<hipMemPool_t>(pools[ordinal].get());
    return hipSuccess;
  });
}

hipError_t known_pool(hipMemPool_t pool) {
  return call([&](Process& process) {
    return process.pools.get(pool) ? hipSuccess : hipErrorInvalidValue;
  });
}

}  // namespace

SOFTHIP_API hipMallocAsync(void** address, std::size_t bytes, hipStream_t stream) {
  return allocate_from(address, bytes, nullptr, stream);
}

SOFTHIP_API hipMallocFromPoolAsync(void** address, std::size_t bytes, hipMemPool_t pool,
                                   hipStream_t stream) {
  return pool == nullptr ? remember(hipErrorInvalidValue)
                         : allocate_from(address, bytes, pool, stream);
}

SOFTHIP_API hipFreeAsync(void* address, hipStream_t handle) {
  return call_in_stream(DefaultStream::kLegacy, handle,
                        [&](Process& process, const std::shared_ptr<Stream>& stream) {
                          return free_in_stream(process, *stream, address_of(address));
                        });
}

SOFTHIP_API hipDeviceGetDefaultMemPool(hipMemPool_t* pool, int ordinal) {
  return pool_of_device(pool, ordinal, false);
}

SOFTHIP_API hipDeviceGetMemPool(hipMemPool_t* pool, int ordinal) {
  return pool_of_device(pool, ordinal, true);
}

SOFTHIP_API hipDeviceSetMemPool(int ordinal, hipMemPool_t pool) {
  return call([&](Process& process) { return set_current_pool(process, ordinal, pool); });
}

SOFTHIP_API hipMemPoolCreate(hipMemPool_t* pool, const hipMemPoolProps* properties) {
  return call([&](Process& process) {
    if (pool == nullptr || properties == nullptr ||
        properties->allocType != hipMemAllocationTypePinned ||
        properties->location.type != hipMemLocationTypeDevice ||
        !process.devices.has(properties->location.id)) {
      return hipErrorInvalidValue;
    }
    if (properties->handleTypes != hipMemHandleTypeNone) return hipErrorNotSupported;
    *pool = handle_of<hipMemPool_t>(create_pool(process, properties->location.id).get());
    return hipSuccess;
  });
}

SOFTHIP_API hipMemPoolDestroy(hipMemPool_t pool) {
  return call([&](Process& process) { return destroy_pool(process, pool); });
}

SOFTHIP_API hipMemPoolTrimTo(hipMemPool_t pool, std::size_t) { return known_pool(pool); }

SOFTHIP_API hipMemPoolSetAccess(hipMemPool_t pool, const hipMemAccessDesc*, std::size_t) {
  return known_pool(pool);
}

/// Every pool's memory is on one device, and all devices can access it.
SOFTHIP_API hipMemPoolGetAccess(hipMemAccessFlags* flags, hipMemPool_t pool, hipMemLocation*) {
  if (flags == nullptr) return remember(hipErrorInvalidValue);
  *flags = hipMemAccessFlagsProtReadWrite;
  return known_pool(pool);
}

SOFTHIP_API hipMemPoolSetAttribute(hipMemPool_t pool, hipMemPoolAttr what, void* value) {
  return call([&](Process& process) -> Result {
    if (value == nullptr) return Result::kInvalidValue;
    return set_pool_attribute(process, pool, static_cast<PoolAttribute>(what), value);
  });
}

SOFTHIP_API hipMemPoolGetAttribute(hipMemPool_t pool, hipMemPoolAttr what, void* value) {
  return call([&](Process& process) -> Result {
    if (value == nullptr) return Result::kInvalidValue;
    return get_pool_attribute(process, pool, static_cast<PoolAttribute>(what), value);
  });
}

SOFTHIP_API hipDeviceGetGraphMemAttribute(int ordinal, hipGraphMemAttributeType, void* value) {
  return call([&](Process& process) {
    if (value == nullptr) return hipErrorInvalidValue;
    if (!process.devices.has(ordinal)) return hipErrorInvalidDevice;
    const std::uint64_t bytes = process.memory.bytes_of_graphs(ordinal);
    std::memcpy(value, &bytes, sizeof(bytes));
    return hipSuccess;
  });
}

SOFTHIP_API hipDeviceGraphMemTrim(int ordinal) {
  return call([&](Process& process) {
    return process.devices.has(ordinal) ? hipSuccess : hipErrorInvalidDevice;
  });
}

}  // namespace gcr::softgpu::hip

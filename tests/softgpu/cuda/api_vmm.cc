// Virtual memory management and pointer attributes.
#include <sys/mman.h>

#include <cstring>

#include "src/base/units.h"
#include "tests/softgpu/cuda/face.h"

namespace gcr::softgpu {
namespace {

template <class T>
CUresult put(void* data, const T& value) {
  std::memcpy(data, &value, sizeof(value));  // NOLINT(bugprone-sizeof-expression): pointers too
  return CUDA_SUCCESS;
}

CUresult pointer_attribute(const RangeInfo& range, CUpointer_attribute what, CUdeviceptr address,
                           void* data) {
  switch (what) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put(data, reinterpret_cast<CUcontext>(range.context));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put(data, range.on_host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return put(data, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!range.on_host() && range.kind != RangeKind::kManaged) return CUDA_ERROR_INVALID_VALUE;
      return put(data, address);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return put(data, range.sync_memops ? 1U : 0U);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put(data, static_cast<unsigned long long>(range.id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put(data, range.kind == RangeKind::kManaged);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put(data, range.told_ordinal);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put(data, range.kind == RangeKind::kDriver);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return put(data, static_cast<CUdeviceptr>(range.start));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put(data, static_cast<std::size_t>(range.bytes));
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return put(data, static_cast<std::size_t>(round_up(range.bytes, kChunkBytes)));
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put(data, true);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put(data, static_cast<unsigned long long>(range.handle_types));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return put(data, false);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return put(data, range.protection() == kReadWrite ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
                       : range.protection() == PROT_READ ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ
                                                         : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(data, range.pool);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

/// The driver's answer for an unknown address, in the plural form.
void put_unknown(CUpointer_attribute what, void* data) {
  const bool wide =
      what == CU_POINTER_ATTRIBUTE_CONTEXT || what == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
      what == CU_POINTER_ATTRIBUTE_HOST_POINTER || what == CU_POINTER_ATTRIBUTE_BUFFER_ID ||
      what == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR || what == CU_POINTER_ATTRIBUTE_RANGE_SIZE ||
      what == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES ||
      what == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
  const bool word = what == CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  if (what == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
    put(data, static_cast<int>(CU_DEVICE_INVALID));
  } else {
    std::memset(data, 0, wide ? 8 : word ? 4 : 1);
  }
}

Location from_abi(const CUmemLocation& location) {
  return {static_cast<Place>(location.type), location.id};
}

AllocationProperties from_abi(const CUmemAllocationProp& properties) {
  AllocationProperties result;
  result.location = from_abi(properties.location);
  result.handle_types = properties.requestedHandleTypes;
  static_assert(sizeof(properties.allocFlags) == sizeof(result.flags));
  std::memcpy(result.flags.data(), &properties.allocFlags, sizeof(result.flags));
  return result;
}

CUmemAllocationProp to_abi(const AllocationProperties& properties) {
  CUmemAllocationProp result{};
  result.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  result.location = {static_cast<CUmemLocationType>(properties.location.place),
                     properties.location.id};
  result.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(properties.handle_types);
  std::memcpy(&result.allocFlags, properties.flags.data(), properties.flags.size());
  return result;
}

int protection_of(CUmemAccess_flags flags) {
  switch (flags) {
    case CU_MEM_ACCESS_FLAGS_PROT_READ:
      return PROT_READ;
    case CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
      return kReadWrite;
    default:
      return PROT_NONE;
  }
}

}  // namespace

SOFTGPU_API cuPointerGetAttribute(void* data, CUpointer_attribute what, CUdeviceptr address) {
  return call([&](Process& process) {
    const RangeInfo range = process.memory.find(address);
    if (data == nullptr || range.bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    return pointer_attribute(range, what, address, data);
  });
}

SOFTGPU_API cuPointerGetAttributes(unsigned count, CUpointer_attribute* what, void** data,
                                   CUdeviceptr address) {
  return call([&](Process& process) {
    const RangeInfo range = process.memory.find(address);
    for (unsigned i = 0; i < count; ++i) {
      if (range.bytes == 0 || pointer_attribute(range, what[i], address, data[i]) != CUDA_SUCCESS) {
        put_unknown(what[i], data[i]);
      }
    }
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuPointerSetAttribute(const void* value, CUpointer_attribute what,
                                  CUdeviceptr address) {
  return call([&](Process& process) -> CUresult {
    if (value == nullptr || what != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return process.memory.set_sync_memops(address, *static_cast<const unsigned*>(value) != 0);
  });
}

SOFTGPU_API cuMemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp* properties,
                                          CUmemAllocationGranularity_flags) {
  return call([&](Process& process) {
    if (bytes == nullptr || properties == nullptr ||
        (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         !process.devices.has(properties->location.id))) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *bytes = kChunkBytes;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment,
                                CUdeviceptr hint, unsigned long long flags) {
  return call([&](Process& process) -> CUresult {
    if (address == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    std::uintptr_t start = 0;
    const CUresult result = process.memory.reserve(bytes, alignment, hint, &start);
    if (result == CUDA_SUCCESS) *address = start;
    return result;
  });
}

SOFTGPU_API cuMemAddressFree(CUdeviceptr address, std::size_t bytes) {
  return call([&](Process& process) { return process.memory.unreserve(address, bytes); });
}

SOFTGPU_API cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                        const CUmemAllocationProp* properties, unsigned long long flags) {
  return call([&](Process& process) -> CUresult {
    if (handle == nullptr || properties == nullptr || flags != 0 ||
        properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return process.memory.create(bytes, from_abi(*properties), handle);
  });
}

SOFTGPU_API cuMemRelease(CUmemGenericAllocationHandle handle) {
  return call([&](Process& process) { return process.memory.release(handle); });
}

SOFTGPU_API cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return call([&](Process& process) {
    return process.memory.retain(reinterpret_cast<std::uintptr_t>(address), handle);
  });
}

SOFTGPU_API cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                     CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return call([&](Process& process) -> CUresult {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return process.memory.map(address, bytes, offset, handle);
  });
}

SOFTGPU_API cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
  return call([&](Process& process) -> CUresult {
    // Work in flight may use the mapping; a real driver waits for it.
    for (const auto& context : process.contexts.all()) context->synchronize();
    return process.memory.unmap(address, bytes);
  });
}

SOFTGPU_API cuMemSetAccess(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* accesses,
                           std::size_t count) {
  return call([&](Process& process) -> CUresult {
    if (accesses == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    std::vector<AccessGrant> grants;
    for (const CUmemAccessDesc& access : std::span(accesses, count)) {
      grants.push_back({from_abi(access.location), protection_of(access.flags)});
    }
    return process.memory.set_access(address, bytes, grants);
  });
}

SOFTGPU_API cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                           CUdeviceptr address) {
  return call([&](Process& process) {
    const RangeInfo range = process.memory.find(address);
    if (flags == nullptr || location == nullptr || range.kind != RangeKind::kVmm ||
        range.bytes == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const bool of_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (of_device && !process.devices.has(location->id)) return CUDA_ERROR_INVALID_DEVICE;
    const int protection = of_device ? range.access.of_device(location->id) : range.access.host;
    *flags = (protection & PROT_WRITE) != 0  ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             : (protection & PROT_READ) != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                             : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                         CUmemAllocationHandleType type, unsigned long long flags) {
  return call([&](Process& process) -> CUresult {
    if (shareable == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    return process.memory.export_file(handle, static_cast<int*>(shareable));
  });
}

SOFTGPU_API cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                           CUmemAllocationHandleType type) {
  return call([&](Process& process) -> CUresult {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    return process.memory.import(static_cast<int>(reinterpret_cast<std::intptr_t>(shareable)),
                                 handle);
  });
}

SOFTGPU_API cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                   CUmemGenericAllocationHandle handle) {
  return call([&](Process& process) {
    AllocationProperties found;
    const Result result = process.memory.properties(handle, &found);
    if (!result) *properties = to_abi(found);
    return result;
  });
}

}  // namespace gcr::softgpu

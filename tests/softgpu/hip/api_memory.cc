// Allocation, addresses, page-locked memory, IPC, pointer attributes.
#include <cstring>

#include "src/base/units.h"
#include "tests/softgpu/engine/pools.h"
#include "tests/softgpu/hip/face.h"

namespace gcr::softgpu::hip {
namespace {

constexpr std::size_t kPitchAlignment = 256;
/// hipFree and hipHostFree accept each other's memory.
constexpr unsigned kPlainlyFreeable = kFreeable | bit(RangeKind::kHost);

hipError_t allocate(void** address, std::size_t bytes) {
  return call_in_context([&](Process& process, Context& context) -> hipError_t {
    if (address == nullptr) return hipErrorInvalidValue;
    if (const Result refused = refuse_if_capturing(process)) return to_hip(refused);
    *address = nullptr;
    if (bytes == 0) return hipSuccess;
    std::uintptr_t start = 0;
    const Result result = process.memory.allocate(context.ordinal, bytes, &context,
                                                  RangeKind::kDriver, nullptr, &start);
    if (!result) *address = pointer_to(start);
    return to_hip(result);
  });
}

hipError_t allocate_host(void** address, std::size_t bytes, RangeKind kind, unsigned flags) {
  return call_in_context([&](Process& process, Context& context) -> hipError_t {
    if (address == nullptr) return hipErrorInvalidValue;
    if (const Result refused = refuse_if_capturing(process)) return to_hip(refused);
    *address = nullptr;
    if (bytes == 0) return hipSuccess;
    std::uintptr_t start = 0;
    const Result result = process.memory.allocate_host(bytes, &context, kind, flags, &start);
    if (!result) *address = pointer_to(start);
    return to_hip(result);
  });
}

/// Waits for all work that may use the memory, as HIP does.
hipError_t free_now(void* address) {
  return call_in_context([&](Process& process, Context&) -> Result {
    if (address == nullptr) return Result::kSuccess;
    for (const auto& context : process.contexts.all()) context->synchronize();
    return process.memory.free(address_of(address), kPlainlyFreeable);
  });
}

RangeInfo host_range(Process& process, const void* address) {
  const RangeInfo range = process.memory.find(address_of(address));
  return range.bytes != 0 && range.on_host() ? range : RangeInfo{};
}

bool is_managed(const RangeInfo& range) { return range.kind == RangeKind::kManaged; }

/// hipMemoryType with the numbers of the simulated release.
int type_of(const RangeInfo& range) {
  if (release() < 600) {
    if (is_managed(range)) return release() < 503 ? hipMemoryTypeUnified : hipMemoryTypeManaged;
    return range.on_host() ? hipMemoryTypeHost : hipMemoryTypeDevice;
  }
  if (is_managed(range)) return hipMemoryTypeManagedR0600;
  return range.on_host() ? hipMemoryTypeHostR0600 : hipMemoryTypeDeviceR0600;
}

int device_of(const RangeInfo& range) {
  if (range.ordinal != kHostOrdinal && !range.on_host() && !is_managed(range)) return range.ordinal;
  return range.context != nullptr ? range.context->ordinal : current_device();
}

template <class T>
hipError_t put(void* data, const T& value) {
  std::memcpy(data, &value, sizeof(value));
  return hipSuccess;
}

hipError_t put_attribute(Process& process, const RangeInfo& range, hipPointer_attribute what,
                         std::uintptr_t address, void* data) {
  const bool host_reaches_it = range.on_host() || is_managed(range);
  switch (what) {
    case HIP_POINTER_ATTRIBUTE_CONTEXT:
      return put(data, static_cast<void*>(primary_context(process, device_of(range)).get()));
    case HIP_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put(data, type_of(range));
    case HIP_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return put(data, address);
    case HIP_POINTER_ATTRIBUTE_HOST_POINTER:
      return host_reaches_it ? put(data, address) : hipErrorInvalidValue;
    case HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return put(data, range.sync_memops ? 1U : 0U);
    case HIP_POINTER_ATTRIBUTE_BUFFER_ID:
      return put(data, static_cast<unsigned>(range.id));
    case HIP_POINTER_ATTRIBUTE_IS_MANAGED:
      return put(data, is_managed(range));
    case HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put(data, device_of(range));
    case HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE:
      return put(data, range.kind == RangeKind::kDriver);
    case HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put(data, range.start);
    case HIP_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put(data, static_cast<std::uint32_t>(range.bytes));
    case HIP_POINTER_ATTRIBUTE_MAPPED:
      return put(data, true);
    case HIP_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put(data, static_cast<std::uint64_t>(range.handle_types));
    case HIP_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return put(data, false);
    case HIP_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return put(data, range.protection() == kReadWrite  ? 3
                       : range.protection() == PROT_READ ? 1
                                                         : 0);
    case HIP_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(data, range.pool);
    default:
      return hipErrorInvalidValue;
  }
}

}  // namespace

SOFTHIP_API hipMemGetInfo(std::size_t* free, std::size_t* total) {
  return call_in_context([&](Process& process, Context& context) {
    const Device& device = process.devices.devices[context.ordinal];
    if (free != nullptr) *free = device.free_bytes();
    if (total != nullptr) *total = device.total_bytes;
    return hipSuccess;
  });
}

SOFTHIP_API hipMalloc(void** address, std::size_t bytes) { return allocate(address, bytes); }

SOFTHIP_API hipExtMallocWithFlags(void** address, std::size_t bytes, unsigned flags) {
  const bool known = flags == hipDeviceMallocDefault || flags == hipDeviceMallocFinegrained ||
                     (flags == hipMallocSignalMemory && bytes == 8) ||
                     flags == hipDeviceMallocUncached || flags == hipDeviceMallocContiguous;
  return known ? allocate(address, bytes) : remember(hipErrorInvalidValue);
}

SOFTHIP_API hipMallocPitch(void** address, std::size_t* pitch, std::size_t width,
                           std::size_t height) {
  if (pitch == nullptr) return remember(hipErrorInvalidValue);
  const std::size_t row = round_up(width, kPitchAlignment);
  const hipError_t result = allocate(address, row * height);
  if (result == hipSuccess) *pitch = row;
  return result;
}

// By name, as HIP 5.2 does.
SOFTHIP_API hipMemAllocPitch(hipDeviceptr_t* address, std::size_t* pitch, std::size_t width,
                             std::size_t height, unsigned) {
  return hipMallocPitch(address, pitch, width, height);
}

SOFTHIP_API hipMalloc3D(hipPitchedPtr* block, hipExtent extent) {
  if (block == nullptr) return remember(hipErrorInvalidValue);
  const std::size_t row = round_up(extent.width, kPitchAlignment);
  void* address = nullptr;
  const hipError_t result = allocate(&address, row * extent.height * extent.depth);
  if (result == hipSuccess) *block = {address, row, extent.width, extent.height};
  return result;
}

SOFTHIP_API hipFree(void* address) { return free_now(address); }

SOFTHIP_API hipMallocManaged(void** address, std::size_t bytes, unsigned flags) {
  if (flags != hipMemAttachGlobal && flags != hipMemAttachHost) {
    return remember(hipErrorInvalidValue);
  }
  return allocate_host(address, bytes, RangeKind::kManaged, flags);
}

SOFTHIP_API hipMemAdvise(const void*, std::size_t, hipMemoryAdvise, int ordinal) {
  return call([&](Process& process) {
    return ordinal == hipCpuDeviceId || process.devices.has(ordinal) ? hipSuccess
                                                                     : hipErrorInvalidDevice;
  });
}

SOFTHIP_API hipMemPrefetchAsync(const void*, std::size_t, int, hipStream_t stream) {
  return call_in_stream(DefaultStream::kLegacy, stream,
                        [](Process&, const std::shared_ptr<Stream>&) { return hipSuccess; });
}

SOFTHIP_API hipStreamAttachMemAsync(hipStream_t stream, void* address, std::size_t, unsigned) {
  return call_in_stream(
      DefaultStream::kLegacy, stream, [&](Process& process, const std::shared_ptr<Stream>&) {
        return is_managed(process.memory.find(address_of(address))) ? hipSuccess
                                                                    : hipErrorInvalidValue;
      });
}

SOFTHIP_API hipMemGetAddressRange(hipDeviceptr_t* start, std::size_t* bytes,
                                  hipDeviceptr_t address) {
  return call([&](Process& process) {
    const RangeInfo range = process.memory.find(address_of(address));
    if (range.bytes == 0) return hipErrorInvalidDevicePointer;
    if (start != nullptr) *start = pointer_to(range.start);
    if (bytes != nullptr) *bytes = range.bytes;
    return hipSuccess;
  });
}

SOFTHIP_API hipMemPtrGetInfo(void* address, std::size_t* bytes) {
  return call([&](Process& process) {
    const RangeInfo range = process.memory.find(address_of(address));
    if (bytes == nullptr || range.start != address_of(address) || range.bytes == 0) {
      return hipErrorInvalidValue;
    }
    *bytes = range.bytes;
    return hipSuccess;
  });
}

SOFTHIP_API hipPointerGetAttributes(hipPointerAttribute_t* attributes, const void* address) {
  return call([&](Process& process) {
    if (attributes == nullptr) return hipErrorInvalidValue;
    *attributes = {};
    const RangeInfo range = process.memory.find(address_of(address));
    if (range.bytes == 0) return hipErrorInvalidValue;
    const bool host_reaches_it = range.on_host() || is_managed(range);
    void* own = pointer_to(address_of(address));
    attributes->memoryType = static_cast<hipMemoryType>(type_of(range));
    attributes->device = device_of(range);
    attributes->devicePointer = own;
    attributes->hostPointer = host_reaches_it ? own : nullptr;
    attributes->isManaged = is_managed(range) ? 1 : 0;
    attributes->allocationFlags = range.host_flags;
    return hipSuccess;
  });
}

SOFTHIP_API hipPointerGetAttribute(void* data, hipPointer_attribute what, hipDeviceptr_t address) {
  return call([&](Process& process) {
    const RangeInfo range = process.memory.find(address_of(address));
    if (data == nullptr || range.bytes == 0) return hipErrorInvalidValue;
    return put_attribute(process, range, what, address_of(address), data);
  });
}

/// Leaves unknown values unchanged.
SOFTHIP_API hipDrvPointerGetAttributes(unsigned count, hipPointer_attribute* what, void** data,
                                       hipDeviceptr_t address) {
  return call([&](Process& process) {
    if (what == nullptr || data == nullptr) return hipErrorInvalidValue;
    const RangeInfo range = process.memory.find(address_of(address));
    for (unsigned i = 0; i < count && range.bytes != 0; ++i) {
      put_attribute(process, range, what[i], address_of(address), data[i]);
    }
    return hipSuccess;
  });
}

SOFTHIP_API hipPointerSetAttribute(const void* value, hipPointer_attribute what,
                                   hipDeviceptr_t address) {
  return call([&](Process& process) -> Result {
    if (value == nullptr || what != HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS) return Result::kInvalidValue;
    return process.memory.set_sync_memops(address_of(address),
                                          *static_cast<const unsigned*>(value) != 0);
  });
}

SOFTHIP_API hipHostMalloc(void** address, std::size_t bytes, unsigned flags) {
  return allocate_host(address, bytes, RangeKind::kHost, flags);
}
SOFTHIP_API hipHostAlloc(void** address, std::size_t bytes, unsigned flags) {
  return allocate_host(address, bytes, RangeKind::kHost, flags);
}
SOFTHIP_API hipMallocHost(void** address, std::size_t bytes) {
  return allocate_host(address, bytes, RangeKind::kHost, hipHostMallocDefault);
}
// By name, as HIP 5.2 does.
SOFTHIP_API hipMemAllocHost(void** address, std::size_t bytes) {
  return hipHostMalloc(address, bytes, hipHostMallocDefault);
}
SOFTHIP_API hipHostFree(void* address) { return free_now(address); }
SOFTHIP_API hipFreeHost(void* address) { return free_now(address); }

SOFTHIP_API hipHostRegister(void* address, std::size_t bytes, unsigned flags) {
  return call_in_context([&](Process& process, Context& context) {
    return process.memory.register_host(address_of(address), bytes, &context, flags);
  });
}

SOFTHIP_API hipHostUnregister(void* address) {
  return call_in_context([&](Process& process, Context&) {
    for (const auto& context : process.contexts.all()) context->synchronize();
    const Result result = process.memory.free(address_of(address), bit(RangeKind::kHostForeign));
    return result ? hipErrorHostMemoryNotRegistered : hipSuccess;
  });
}

SOFTHIP_API hipHostGetDevicePointer(void** device, void* address, unsigned) {
  return call([&](Process& process) {
    const RangeInfo range = process.memory.find(address_of(address));
    const bool usable = range.bytes != 0 && (range.on_host() || is_managed(range));
    if (device == nullptr || !usable) return hipErrorInvalidValue;
    *device = address;
    return hipSuccess;
  });
}

SOFTHIP_API hipHostGetFlags(unsigned* flags, void* address) {
  return call([&](Process& process) {
    const RangeInfo range = host_range(process, address);
    if (flags == nullptr || range.bytes == 0) return hipErrorInvalidValue;
    *flags = range.host_flags;
    return hipSuccess;
  });
}

SOFTHIP_API hipIpcGetMemHandle(hipIpcMemHandle_t* handle, void* address) {
  return call([&](Process& process) -> Result {
    if (handle == nullptr) return Result::kInvalidValue;
    return process.memory.ipc_handle(address_of(address), handle->reserved);
  });
}

SOFTHIP_API hipIpcOpenMemHandle(void** address, hipIpcMemHandle_t handle, unsigned flags) {
  return call_in_context([&](Process& process, Context& context) -> hipError_t {
    constexpr unsigned kLazyPeerAccess = 1;  // 0 in some releases
    if (address == nullptr || flags > kLazyPeerAccess) return hipErrorInvalidValue;
    std::uintptr_t start = 0;
    const Result result = process.memory.ipc_open(handle.reserved, &context, &start);
    if (!result) *address = pointer_to(start);
    return to_hip(result);
  });
}

SOFTHIP_API hipIpcCloseMemHandle(void* address) {
  return call_in_context([&](Process& process, Context& context) -> Result {
    if (const Result fault = context.synchronize()) return fault;
    return process.memory.ipc_close(address_of(address));
  });
}

}  // namespace gcr::softgpu::hip

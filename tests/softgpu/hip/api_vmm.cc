// Virtual memory management. Differences between the releases: the layout of the properties (5.3),
// and how a descriptor is imported (7.1).
#include <sys/mman.h>

#include <cstring>
#include <span>
#include <vector>

#include "src/base/units.h"
#include "tests/softgpu/hip/face.h"

namespace gcr::softgpu::hip {
namespace {

Location from_abi(const hipMemLocation& location) {
  return {static_cast<Place>(location.type), location.id};
}

int protection_of(hipMemAccessFlags flags) {
  switch (flags) {
    case hipMemAccessFlagsProtRead:
      return PROT_READ;
    case hipMemAccessFlagsProtReadWrite:
      return kReadWrite;
    default:
      return PROT_NONE;
  }
}

MemoryHandle number_of(hipMemGenericAllocationHandle_t handle) { return address_of(handle); }

hipMemGenericAllocationHandle_t to_abi(MemoryHandle number) {
  return reinterpret_cast<hipMemGenericAllocationHandle_t>(number);
}

/// False: the type cannot be requested.
template <class Abi>
bool read_one(const Abi& abi, unsigned handle_types, AllocationProperties* properties) {
  properties->location = from_abi(abi.location);
  properties->handle_types = handle_types;
  return abi.type == hipMemAllocationTypePinned;
}

bool read_properties(const hipMemAllocationProp* abi, AllocationProperties* properties) {
  if (release() < 503) return read_one(*abi, abi->requestedHandleType, properties);
  const auto& recent = *reinterpret_cast<const hipMemAllocationPropR0503*>(abi);
  std::memcpy(properties->flags.data(), &recent.allocFlags, sizeof(recent.allocFlags));
  return read_one(recent, recent.requestedHandleTypes, properties);
}

void write_properties(const AllocationProperties& properties, hipMemAllocationProp* abi) {
  const hipMemLocation location{static_cast<hipMemLocationType>(properties.location.place),
                                properties.location.id};
  const auto types = static_cast<hipMemAllocationHandleType>(properties.handle_types);
  if (release() < 503) {
    *abi = {};
    abi->type = hipMemAllocationTypePinned;
    abi->requestedHandleType = types;
    abi->location = location;
    return;
  }
  auto& recent = *reinterpret_cast<hipMemAllocationPropR0503*>(abi);
  recent = {};
  recent.type = hipMemAllocationTypePinned;
  recent.requestedHandleTypes = types;
  recent.location = location;
  std::memcpy(&recent.allocFlags, properties.flags.data(), sizeof(recent.allocFlags));
}

/// On an existing device: HIP maps no other memory.
bool on_device(const Process& process, const Location& location) {
  return location.place == Place::kDevice && process.devices.has(location.id);
}

}  // namespace

SOFTHIP_API hipMemGetAllocationGranularity(std::size_t* bytes, const hipMemAllocationProp* abi,
                                           hipMemAllocationGranularity_flags option) {
  return call([&](Process& process) {
    AllocationProperties properties;
    if (bytes == nullptr || abi == nullptr || !read_properties(abi, &properties) ||
        !on_device(process, properties.location) ||
        option > hipMemAllocationGranularityRecommended) {
      return hipErrorInvalidValue;
    }
    *bytes = kChunkBytes;
    return hipSuccess;
  });
}

SOFTHIP_API hipMemAddressReserve(void** address, std::size_t bytes, std::size_t alignment,
                                 void* hint, unsigned long long flags) {
  return call([&](Process& process) -> hipError_t {
    if (address == nullptr || flags != 0) return hipErrorInvalidValue;
    std::uintptr_t start = 0;
    const Result result = process.memory.reserve(bytes, alignment, address_of(hint), &start);
    if (result) return hipErrorOutOfMemory;  // for each reason
    *address = pointer_to(start);
    return hipSuccess;
  });
}

SOFTHIP_API hipMemAddressFree(void* address, std::size_t bytes) {
  return call(
      [&](Process& process) { return process.memory.unreserve(address_of(address), bytes); });
}

SOFTHIP_API hipMemCreate(hipMemGenericAllocationHandle_t* handle, std::size_t bytes,
                         const hipMemAllocationProp* abi, unsigned long long flags) {
  // By name, as HIP 5.2 does. Here the allocation itself reports whether there is room.
  std::size_t free = 0;
  std::size_t total = 0;
  const hipError_t asked = hipMemGetInfo(&free, &total);
  if (asked != hipSuccess) return asked;
  return call([&](Process& process) -> hipError_t {
    AllocationProperties properties;
    if (handle == nullptr || abi == nullptr || flags != 0 || !read_properties(abi, &properties) ||
        !on_device(process, properties.location)) {
      return hipErrorInvalidValue;
    }
    MemoryHandle number = 0;
    const Result result = process.memory.create(bytes, properties, &number);
    if (!result) *handle = to_abi(number);
    return to_hip(result);
  });
}

SOFTHIP_API hipMemRelease(hipMemGenericAllocationHandle_t handle) {
  return call([&](Process& process) { return process.memory.release(number_of(handle)); });
}

SOFTHIP_API hipMemRetainAllocationHandle(hipMemGenericAllocationHandle_t* handle, void* address) {
  return call([&](Process& process) -> hipError_t {
    if (handle == nullptr) return hipErrorInvalidValue;
    MemoryHandle number = 0;
    const Result result = process.memory.retain(address_of(address), &number);
    if (!result) *handle = to_abi(number);
    return to_hip(result);
  });
}

SOFTHIP_API hipMemMap(void* address, std::size_t bytes, std::size_t offset,
                      hipMemGenericAllocationHandle_t handle, unsigned long long flags) {
  return call([&](Process& process) -> Result {
    if (flags != 0) return Result::kInvalidValue;
    return process.memory.map(address_of(address), bytes, offset, number_of(handle));
  });
}

SOFTHIP_API hipMemUnmap(void* address, std::size_t bytes) {
  return call([&](Process& process) {
    // Work in flight may use the mapping; the real runtime waits for it.
    for (const auto& context : process.contexts.all()) context->synchronize();
    return process.memory.unmap(address_of(address), bytes);
  });
}

SOFTHIP_API hipMemSetAccess(void* address, std::size_t bytes, const hipMemAccessDesc* accesses,
                            std::size_t count) {
  return call([&](Process& process) -> hipError_t {
    if (accesses == nullptr || count == 0) return hipErrorInvalidValue;
    std::vector<AccessGrant> grants;
    for (const hipMemAccessDesc& access : std::span(accesses, count)) {
      grants.push_back({from_abi(access.location), protection_of(access.flags)});
      if (!on_device(process, grants.back().location)) return hipErrorInvalidValue;
    }
    return to_hip(process.memory.set_access(address_of(address), bytes, grants));
  });
}

SOFTHIP_API hipMemGetAccess(unsigned long long* flags, const hipMemLocation* location,
                            void* address) {
  return call([&](Process& process) {
    const RangeInfo range = process.memory.find(address_of(address));
    if (flags == nullptr || location == nullptr || !on_device(process, from_abi(*location)) ||
        range.kind != RangeKind::kVmm || range.bytes == 0) {
      return hipErrorInvalidValue;
    }
    const int protection = range.access.of_device(location->id);
    *flags = (protection & PROT_WRITE) != 0  ? hipMemAccessFlagsProtReadWrite
             : (protection & PROT_READ) != 0 ? hipMemAccessFlagsProtRead
                                             : hipMemAccessFlagsProtNone;
    return hipSuccess;
  });
}

SOFTHIP_API hipMemExportToShareableHandle(void* shareable, hipMemGenericAllocationHandle_t handle,
                                          hipMemAllocationHandleType type,
                                          unsigned long long flags) {
  return call([&](Process& process) -> Result {
    if (shareable == nullptr || flags != 0 || type != hipMemHandleTypePosixFileDescriptor) {
      return Result::kInvalidValue;
    }
    return process.memory.export_file(number_of(handle), static_cast<int*>(shareable));
  });
}

SOFTHIP_API hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t* handle,
                                            void* shareable, hipMemAllocationHandleType type) {
  return call([&](Process& process) -> hipError_t {
    if (handle == nullptr || type != hipMemHandleTypePosixFileDescriptor) {
      return hipErrorInvalidValue;
    }
    const bool by_value = release() >= 701;
    if (!by_value && shareable == nullptr) return hipErrorInvalidValue;
    const int file =
        by_value ? static_cast<int>(address_of(shareable)) : *static_cast<const int*>(shareable);
    MemoryHandle number = 0;
    const Result result = process.memory.import(file, &number);
    if (!result) *handle = to_abi(number);
    return to_hip(result);
  });
}

SOFTHIP_API hipMemGetAllocationPropertiesFromHandle(hipMemAllocationProp* abi,
                                                    hipMemGenericAllocationHandle_t handle) {
  return call([&](Process& process) -> hipError_t {
    AllocationProperties properties;
    const Result result = process.memory.properties(number_of(handle), &properties);
    if (abi == nullptr) return hipErrorInvalidValue;
    if (!result) write_properties(properties, abi);
    return to_hip(result);
  });
}

}  // namespace gcr::softgpu::hip

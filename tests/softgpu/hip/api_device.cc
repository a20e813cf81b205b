// Devices, versions, the contexts that HIP has kept from CUDA, peer access.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/softgpu/engine/streams.h"
#include "tests/softgpu/hip/face.h"

namespace gcr::softgpu::hip {
namespace {

constexpr int kBusOfFirstDevice = 0x10;
constexpr std::size_t kSharedBytes = 64 * 1024;
constexpr int kWarpSize = 64;
constexpr int kMultiprocessors = 4;

bool has_vmm() {
  const char* vmm = std::getenv("SOFTGPU_VMM");
  return vmm == nullptr || std::strcmp(vmm, "0") != 0;
}

/// Plausible values of a recent GPU; attributes that mean "has feature" name the features of this
/// face.
int attribute(hipDeviceAttribute_t what, const Device& device, int ordinal) {
  switch (what) {
    case hipDeviceAttributeMaxThreadsPerBlock:
    case hipDeviceAttributeMaxThreadsDim:
    case hipDeviceAttributeMaxBlockDimX:
    case hipDeviceAttributeMaxBlockDimY:
    case hipDeviceAttributeMaxBlockDimZ:
      return 1024;
    case hipDeviceAttributeMaxGridDimX:
    case hipDeviceAttributeMaxGridDimY:
    case hipDeviceAttributeMaxGridDimZ:
      return 2147483647;
    case hipDeviceAttributeMaxSharedMemoryPerBlock:
    case hipDeviceAttributeMaxSharedMemoryPerMultiprocessor:
      return kSharedBytes;
    case hipDeviceAttributeTotalGlobalMem:
      return static_cast<int>(std::min<std::uint64_t>(device.total_bytes, 2147483647));
    case hipDeviceAttributeWarpSize:
      return kWarpSize;
    case hipDeviceAttributeClockRate:
      return 1000000;
    case hipDeviceAttributeTextureAlignment:
      return 256;
    case hipDeviceAttributeMultiprocessorCount:
      return kMultiprocessors;
    case hipDeviceAttributeMaxThreadsPerMultiProcessor:
      return 2048;
    case hipDeviceAttributePciBusId:
      return kBusOfFirstDevice + ordinal;
    case hipDeviceAttributeComputeCapabilityMajor:
      return 9;
    case hipDeviceAttributeComputeCapabilityMinor:
      return 4;
    case hipDeviceAttributeVirtualMemoryManagementSupported:
      return has_vmm() ? 1 : 0;
    case hipDeviceAttributeCanMapHostMemory:
    case hipDeviceAttributeConcurrentKernels:
    case hipDeviceAttributeUnifiedAddressing:
    case hipDeviceAttributeStreamPrioritiesSupported:
    case hipDeviceAttributeManagedMemory:
    case hipDeviceAttributeCanUseHostPointerForRegisteredMem:
    case hipDeviceAttributeMemoryPoolsSupported:
    case hipDeviceAttributeIsLargeBar:
      return 1;
    default:
      return 0;
  }
}

/// Common to both layouts of the properties.
template <class Properties>
void put_properties(Properties* to, const Device& device, int ordinal) {
  *to = {};
  const char* name = std::getenv("SOFTGPU_NAME");
  std::snprintf(to->name, sizeof(to->name), "%s", name != nullptr ? name : "Software GPU");
  std::snprintf(to->gcnArchName, sizeof(to->gcnArchName), "%s", kArchitecture);
  to->totalGlobalMem = device.total_bytes;
  to->sharedMemPerBlock = kSharedBytes;
  to->maxSharedMemoryPerMultiProcessor = kSharedBytes;
  to->warpSize = kWarpSize;
  to->maxThreadsPerBlock = 1024;
  std::ranges::fill(to->maxThreadsDim, 1024);
  std::ranges::fill(to->maxGridSize, 2147483647);
  to->clockRate = 1000000;
  to->major = 9;
  to->minor = 4;
  to->multiProcessorCount = kMultiprocessors;
  to->maxThreadsPerMultiProcessor = 2048;
  to->concurrentKernels = 1;
  to->pciBusID = kBusOfFirstDevice + ordinal;
  to->canMapHostMemory = 1;
  to->textureAlignment = 256;
  to->isLargeBar = 1;
  to->managedMemory = 1;
}

/// Runs `body(device)` for a valid ordinal.
template <class Body>
hipError_t with_device(int ordinal, Body&& body) {
  return call([&](Process& process) -> hipError_t {
    const Device* device = process.devices.at(ordinal);
    return device == nullptr ? hipErrorInvalidDevice : body(*device);
  });
}

/// 50221153 for 5.2.21153 and so on; the patch level is invented.
int version_number() { return release() / 100 * 10000000 + release() % 100 * 100000; }

hipError_t put_version(int* version) {
  if (version == nullptr) return remember(hipErrorInvalidValue);
  *version = version_number();
  return remember(hipSuccess);
}

hipError_t synchronize_device() {
  return call_in_context([](Process& process, Context& context) -> Result {
    if (const Result refused = refuse_if_capturing(process)) return refused;
    return context.synchronize();
  });
}

hipError_t peer_access(int peer, unsigned flags, Result (*change)(Context&, Context&)) {
  return call_in_context([&](Process& process, Context& context) -> hipError_t {
    if (!process.devices.has(peer) || peer == context.ordinal) return hipErrorInvalidDevice;
    if (flags != 0) return hipErrorInvalidValue;
    return to_hip(change(context, *primary_context(process, peer)));
  });
}

/// -1: it is no context.
int device_of(hipCtx_t handle) {
  const auto context = Process::get().contexts.get(handle);
  return context ? context->ordinal : -1;
}

/// The devices that hipCtxPushCurrent has saved.
std::vector<int>& earlier_devices() {
  thread_local auto& stack = *new std::vector<int>;
  return stack;
}

}  // namespace

SOFTHIP_API hipInit(unsigned flags) {
  if (flags != 0) return remember(hipErrorInvalidValue);
  return call([](Process&) { return hipSuccess; });
}

SOFTHIP_API hipRuntimeGetVersion(int* version) { return put_version(version); }
SOFTHIP_API hipDriverGetVersion(int* version) { return put_version(version); }

SOFTHIP_API hipGetDeviceCount(int* count) {
  return call([&](Process& process) {
    if (count == nullptr) return hipErrorInvalidValue;
    *count = process.devices.count;
    return hipSuccess;
  });
}

SOFTHIP_API hipGetDevice(int* ordinal) {
  return call([&](Process&) {
    if (ordinal == nullptr) return hipErrorInvalidValue;
    *ordinal = current_device();
    return hipSuccess;
  });
}

SOFTHIP_API hipSetDevice(int ordinal) {
  return with_device(ordinal, [&](const Device&) {
    current_device() = ordinal;
    return hipSuccess;
  });
}

SOFTHIP_API hipDeviceGet(hipDevice_t* device, int ordinal) {
  return with_device(ordinal, [&](const Device&) {
    *device = ordinal;
    return hipSuccess;
  });
}

SOFTHIP_API hipDeviceGetName(char* name, int length, hipDevice_t ordinal) {
  return with_device(ordinal, [&](const Device& device) {
    if (name == nullptr || length <= 0) return hipErrorInvalidValue;
    hipDeviceProp_t properties;
    put_properties(&properties, device, ordinal);
    std::snprintf(name, static_cast<std::size_t>(length), "%s", properties.name);
    return hipSuccess;
  });
}

SOFTHIP_API hipDeviceGetUuid(hipUUID* uuid, hipDevice_t ordinal) {
  return with_device(ordinal, [&](const Device& device) {
    if (uuid == nullptr) return hipErrorInvalidValue;
    std::memcpy(uuid->bytes, device.uuid.bytes.data(), sizeof(uuid->bytes));
    return hipSuccess;
  });
}

SOFTHIP_API hipDeviceTotalMem(std::size_t* bytes, hipDevice_t ordinal) {
  return with_device(ordinal, [&](const Device& device) {
    if (bytes == nullptr) return hipErrorInvalidValue;
    *bytes = device.total_bytes;
    return hipSuccess;
  });
}

SOFTHIP_API hipDeviceGetAttribute(int* value, hipDeviceAttribute_t what, int ordinal) {
  return with_device(ordinal, [&](const Device& device) {
    if (value == nullptr) return hipErrorInvalidValue;
    *value = attribute(what, device, ordinal);
    return hipSuccess;
  });
}

SOFTHIP_API hipDeviceComputeCapability(int* major, int* minor, hipDevice_t ordinal) {
  return with_device(ordinal, [&](const Device& device) {
    *major = attribute(hipDeviceAttributeComputeCapabilityMajor, device, ordinal);
    *minor = attribute(hipDeviceAttributeComputeCapabilityMinor, device, ordinal);
    return hipSuccess;
  });
}

SOFTHIP_API hipGetDeviceProperties(hipDeviceProp_t* properties, int ordinal) {
  return with_device(ordinal, [&](const Device& device) {
    if (properties == nullptr) return hipErrorInvalidValue;
    put_properties(properties, device, ordinal);
    return hipSuccess;
  });
}

SOFTHIP_API hipGetDevicePropertiesR0000(hipDeviceProp_t* properties, int ordinal) {
  return hipGetDeviceProperties(properties, ordinal);
}

SOFTHIP_API hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* properties, int ordinal) {
  return with_device(ordinal, [&](const Device& device) {
    if (properties == nullptr) return hipErrorInvalidValue;
    put_properties(properties, device, ordinal);
    std::memcpy(properties->uuid.bytes, device.uuid.bytes.data(), sizeof(properties->uuid.bytes));
    properties->unifiedAddressing = 1;
    properties->streamPrioritiesSupported = 1;
    properties->memoryPoolsSupported = 1;
    return hipSuccess;
  });
}

SOFTHIP_API hipDeviceGetPCIBusId(char* text, int length, int ordinal) {
  return with_device(ordinal, [&](const Device&) {
    if (text == nullptr || length <= 0) return hipErrorInvalidValue;
    std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0",
                  static_cast<unsigned>(kBusOfFirstDevice + ordinal));
    return hipSuccess;
  });
}

SOFTHIP_API hipDeviceGetByPCIBusId(int* ordinal, const char* text) {
  return call([&](Process& process) {
    unsigned bus = 0;
    if (ordinal == nullptr || text == nullptr || std::sscanf(text, "%*x:%x:", &bus) != 1) {
      return hipErrorInvalidValue;
    }
    *ordinal = static_cast<int>(bus) - kBusOfFirstDevice;
    return process.devices.has(*ordinal) ? hipSuccess : hipErrorInvalidDevice;
  });
}

SOFTHIP_API hipDeviceSynchronize() { return synchronize_device(); }
SOFTHIP_API hipCtxSynchronize() { return synchronize_device(); }

SOFTHIP_API hipDeviceReset() {
  return call([](Process& process) { return release_primary(process, current_device(), true); });
}

SOFTHIP_API hipDeviceGetLimit(std::size_t* value, hipLimit_t limit) {
  return call_in_context([&](Process&, Context& context) {
    if (value == nullptr || limit > hipLimitMallocHeapSize) return hipErrorUnsupportedLimit;
    *value = context.limits[limit];
    return hipSuccess;
  });
}

SOFTHIP_API hipDeviceSetLimit(hipLimit_t limit, std::size_t value) {
  return call_in_context([&](Process&, Context& context) {
    if (limit > hipLimitMallocHeapSize) return hipErrorInvalidValue;
    context.limits[limit] = value;
    return hipSuccess;
  });
}

SOFTHIP_API hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return call([&](Process&) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = kGreatestPriority;
    return hipSuccess;
  });
}

SOFTHIP_API hipInitDevice(int ordinal, unsigned, unsigned) {
  return call([&](Process& process) {
    if (!process.devices.has(ordinal)) return hipErrorInvalidDevice;
    primary_context(process, ordinal);
    return hipSuccess;
  });
}

SOFTHIP_API hipSetDeviceFlags(unsigned flags) {
  return call_in_context([&](Process&, Context& context) {
    context.flags = flags;
    return hipSuccess;
  });
}

SOFTHIP_API hipGetDeviceFlags(unsigned* flags) {
  return call_in_context([&](Process&, Context& context) {
    if (flags == nullptr) return hipErrorInvalidValue;
    *flags = context.flags;
    return hipSuccess;
  });
}

SOFTHIP_API hipDeviceSetCacheConfig(hipFuncCache_t config) {
  return call_in_context([&](Process&, Context& context) {
    context.cache = config;
    return hipSuccess;
  });
}

SOFTHIP_API hipDeviceGetCacheConfig(hipFuncCache_t* config) {
  return call_in_context([&](Process&, Context& context) {
    *config = static_cast<hipFuncCache_t>(context.cache);
    return hipSuccess;
  });
}

SOFTHIP_API hipDeviceCanAccessPeer(int* can, int ordinal, int peer) {
  return call([&](Process& process) {
    if (can == nullptr) return hipErrorInvalidValue;
    if (!process.devices.has(ordinal) || !process.devices.has(peer)) return hipErrorInvalidDevice;
    *can = ordinal != peer ? 1 : 0;
    return hipSuccess;
  });
}

SOFTHIP_API hipDeviceGetP2PAttribute(int* value, hipDeviceP2PAttr what, int ordinal, int peer) {
  // By name, as HIP 5.2 does.
  hipDeviceProp_t properties;
  for (const int device : {ordinal, peer}) {
    const hipError_t known = hipGetDeviceProperties(&properties, device);
    if (known != hipSuccess) return known;
  }
  if (value == nullptr) return remember(hipErrorInvalidValue);
  if (ordinal == peer) return remember(hipErrorInvalidDevice);
  *value = what == hipDevP2PAttrAccessSupported || what == hipDevP2PAttrNativeAtomicSupported;
  return remember(hipSuccess);
}

SOFTHIP_API hipDeviceEnablePeerAccess(int peer, unsigned flags) {
  return peer_access(peer, flags, enable_peer_access);
}

SOFTHIP_API hipDeviceDisablePeerAccess(int peer) {
  return peer_access(peer, 0, disable_peer_access);
}

// A HIP context is its device, so creating and setting one selects the thread's device.

SOFTHIP_API hipCtxCreate(hipCtx_t* handle, unsigned, hipDevice_t ordinal) {
  return call([&](Process& process) {
    if (handle == nullptr) return hipErrorInvalidValue;
    if (!process.devices.has(ordinal)) return hipErrorInvalidDevice;
    earlier_devices().push_back(current_device());
    current_device() = ordinal;
    *handle = handle_of<hipCtx_t>(primary_context(process, ordinal).get());
    return hipSuccess;
  });
}

SOFTHIP_API hipCtxPopCurrent(hipCtx_t* handle) {
  return call([&](Process& process) {
    if (earlier_devices().empty()) return hipErrorInvalidContext;
    if (handle != nullptr) *handle = handle_of<hipCtx_t>(current_context_of(process).get());
    current_device() = earlier_devices().back();
    earlier_devices().pop_back();
    return hipSuccess;
  });
}

SOFTHIP_API hipCtxPushCurrent(hipCtx_t handle) {
  return call([&](Process& process) {
    const auto context = process.contexts.get(handle);
    if (!context) return hipErrorInvalidContext;
    earlier_devices().push_back(current_device());
    current_device() = context->ordinal;
    return hipSuccess;
  });
}

/// The device's memory stays: others may use it.
SOFTHIP_API hipCtxDestroy(hipCtx_t handle) {
  return call([&](Process& process) {
    const auto context = process.contexts.get(handle);
    if (!context) return hipErrorInvalidContext;
    if (current_device() == context->ordinal && !earlier_devices().empty()) {
      current_device() = earlier_devices().back();
      earlier_devices().pop_back();
    }
    return hipSuccess;
  });
}

SOFTHIP_API hipCtxEnablePeerAccess(hipCtx_t peer, unsigned flags) {
  return peer_access(device_of(peer), flags, enable_peer_access);
}

SOFTHIP_API hipCtxDisablePeerAccess(hipCtx_t peer) {
  return peer_access(device_of(peer), 0, disable_peer_access);
}

SOFTHIP_API hipCtxSetCurrent(hipCtx_t handle) {
  return call([&](Process& process) {
    if (handle == nullptr) return hipSuccess;
    const auto context = process.contexts.get(handle);
    if (!context) return hipErrorInvalidContext;
    current_device() = context->ordinal;
    return hipSuccess;
  });
}

SOFTHIP_API hipCtxGetCurrent(hipCtx_t* handle) {
  return call([&](Process& process) {
    if (handle == nullptr) return hipErrorInvalidValue;
    *handle = handle_of<hipCtx_t>(current_context_of(process).get());
    return hipSuccess;
  });
}

SOFTHIP_API hipCtxGetDevice(hipDevice_t* device) {
  return call([&](Process&) {
    if (device == nullptr) return hipErrorInvalidValue;
    *device = current_device();
    return hipSuccess;
  });
}

SOFTHIP_API hipDevicePrimaryCtxRetain(hipCtx_t* handle, hipDevice_t ordinal) {
  return call([&](Process& process) {
    if (!process.devices.has(ordinal)) return hipErrorInvalidDevice;
    if (handle == nullptr) return hipErrorInvalidValue;
    *handle = handle_of<hipCtx_t>(primary_context(process, ordinal).get());
    return hipSuccess;
  });
}

SOFTHIP_API hipDevicePrimaryCtxRelease(hipDevice_t ordinal) {
  return with_device(ordinal, [](const Device&) { return hipSuccess; });
}

SOFTHIP_API hipDevicePrimaryCtxReset(hipDevice_t ordinal) {
  return with_device(ordinal, [](const Device&) { return hipSuccess; });
}

SOFTHIP_API hipDevicePrimaryCtxGetState(hipDevice_t ordinal, unsigned* flags, int* active) {
  return with_device(ordinal, [&](const Device&) {
    if (flags != nullptr) *flags = 0;
    if (active != nullptr) *active = ordinal == current_device() ? 1 : 0;
    return hipSuccess;
  });
}

SOFTHIP_API hipDevicePrimaryCtxSetFlags(hipDevice_t ordinal, unsigned) {
  return with_device(ordinal, [](const Device&) { return hipErrorContextAlreadyInUse; });
}

}  // namespace gcr::softgpu::hip

// Devices, errors, and other functions that need no context.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "src/base/units.h"
#include "tests/softgpu/cuda/face.h"

namespace gcr::softgpu {
namespace {

/// SOFTGPU_VMM=0: a GPU whose driver maps no memory for programs, like some virtual GPUs.
bool has_virtual_memory() {
  const char* vmm = std::getenv("SOFTGPU_VMM");
  return vmm == nullptr || std::strcmp(vmm, "0") != 0;
}

/// The number in the environment variable, else `otherwise`.
int number_from(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

constexpr int kDriverVersion = 13000;
constexpr int kBusOfFirstDevice = 0x10;

CUuuid to_abi(const Uuid& uuid) {
  CUuuid result;
  std::memcpy(result.bytes, uuid.bytes.data(), sizeof(result.bytes));
  return result;
}

/// Plausible values of a recent GPU; attributes that mean "has feature" name the features of this
/// driver.
int attribute(CUdevice_attribute what, int ordinal) {
  switch (what) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
      return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
      return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      return 48 * 1024;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      return 1000000;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
      return 512;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 4;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return 2048;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 2;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
      return number_from("SOFTGPU_COMPUTE_MODE", 0);
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return kBusOfFirstDevice + ordinal;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 7;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      return has_virtual_memory() ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
      return kHostNumaNode;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
      return 1;
    default:
      return 0;
  }
}

struct ErrorText {
  CUresult code;
  const char* name;
  const char* text;
};

#define SOFTGPU_ERROR(code, text) \
  { code, #code, text }
constexpr ErrorText kErrors[] = {
    SOFTGPU_ERROR(CUDA_SUCCESS, "no error"),
    SOFTGPU_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    SOFTGPU_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    SOFTGPU_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    SOFTGPU_ERROR(CUDA_ERROR_NO_DEVICE, "no device"),
    SOFTGPU_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    SOFTGPU_ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    SOFTGPU_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    SOFTGPU_ERROR(CUDA_ERROR_MAP_FAILED, "mapping failed"),
    SOFTGPU_ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image for this device"),
    SOFTGPU_ERROR(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported"),
    SOFTGPU_ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported"),
    SOFTGPU_ERROR(CUDA_ERROR_OPERATING_SYSTEM, "a system call failed"),
    SOFTGPU_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    SOFTGPU_ERROR(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in this state"),
    SOFTGPU_ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    SOFTGPU_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    SOFTGPU_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    SOFTGPU_ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    SOFTGPU_ERROR(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    SOFTGPU_ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    SOFTGPU_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "host memory is registered already"),
    SOFTGPU_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "host memory is not registered"),
    SOFTGPU_ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    SOFTGPU_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    SOFTGPU_ERROR(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    SOFTGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                  "not permitted while a stream is captured"),
    SOFTGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture was invalidated"),
    SOFTGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture began on another stream"),
    SOFTGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency on work outside the capture"),
    SOFTGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "implicit dependency on a captured stream"),
    SOFTGPU_ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "the capture began in another thread"),
    SOFTGPU_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};

const ErrorText* find_error(CUresult code) {
  const auto* found = std::find_if(std::begin(kErrors), std::end(kErrors),
                                   [&](const ErrorText& error) { return error.code == code; });
  return found == std::end(kErrors) ? nullptr : found;
}

/// Runs `body(device)` for a valid ordinal.
template <class Body>
CUresult with_device(CUdevice ordinal, Body&& body) {
  return call([&](Process& process) -> CUresult {
    Device* device = process.devices.at(ordinal);
    return device == nullptr ? CUDA_ERROR_INVALID_DEVICE : body(*device);
  });
}

}  // namespace

SOFTGPU_API cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  try {
    return Process::get().init(Vendor::kNvidia);
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

SOFTGPU_API cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = number_from("SOFTGPU_DRIVER_VERSION", kDriverVersion);
  return CUDA_SUCCESS;
}

SOFTGPU_API cuGetErrorName(CUresult code, const char** name) {
  const ErrorText* error = find_error(code);
  *name = error != nullptr ? error->name : nullptr;
  return error != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SOFTGPU_API cuGetErrorString(CUresult code, const char** text) {
  const ErrorText* error = find_error(code);
  *text = error != nullptr ? error->text : nullptr;
  return error != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SOFTGPU_API cuDeviceGetCount(int* count) {
  return call([&](Process& process) {
    *count = process.devices.count;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuDeviceGet(CUdevice* device, int ordinal) {
  return with_device(ordinal, [&](Device&) {
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuDeviceGetName(char* name, int length, CUdevice ordinal) {
  return with_device(ordinal, [&](Device&) {
    if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    const char* configured = std::getenv("SOFTGPU_NAME");
    std::snprintf(name, static_cast<std::size_t>(length), "%s",
                  configured != nullptr ? configured : "Software GPU");
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice ordinal) {
  return with_device(ordinal, [&](Device& device) {
    *uuid = to_abi(device.uuid);
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuDeviceGetUuid(CUuuid* uuid, CUdevice ordinal) {
  return cuDeviceGetUuid_v2(uuid, ordinal);
}

SOFTGPU_API cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice ordinal) {
  return with_device(ordinal, [&](Device& device) {
    *bytes = device.total_bytes;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuDeviceGetAttribute(int* value, CUdevice_attribute what, CUdevice ordinal) {
  return with_device(ordinal, [&](Device&) {
    *value = attribute(what, ordinal);
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuDeviceComputeCapability(int* major, int* minor, CUdevice ordinal) {
  return with_device(ordinal, [&](Device&) {
    *major = 7;
    *minor = 0;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuDeviceGetPCIBusId(char* text, int length, CUdevice ordinal) {
  return with_device(ordinal, [&](Device&) {
    std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0",
                  static_cast<unsigned>(kBusOfFirstDevice + ordinal));
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuDeviceGetByPCIBusId(CUdevice* ordinal, const char* text) {
  return call([&](Process& process) {
    unsigned bus = 0;
    if (std::sscanf(text, "%*x:%x:", &bus) != 1 && std::sscanf(text, "%x:", &bus) != 1) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *ordinal = static_cast<int>(bus) - kBusOfFirstDevice;
    return process.devices.at(*ordinal) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  });
}

SOFTGPU_API cuDeviceCanAccessPeer(int* can, CUdevice ordinal, CUdevice peer) {
  return call([&](Process& process) {
    if (process.devices.at(ordinal) == nullptr || process.devices.at(peer) == nullptr) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *can = ordinal != peer ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

SOFTGPU_API cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute what, CUdevice ordinal,
                                    CUdevice peer) {
  return call([&](Process& process) {
    if (process.devices.at(ordinal) == nullptr || process.devices.at(peer) == nullptr ||
        ordinal == peer) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    switch (value != nullptr ? what : CUdevice_P2PAttribute{}) {
      case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
        *value = 0;
        return CUDA_SUCCESS;
      case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
      case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
        *value = 1;
        return CUDA_SUCCESS;
      case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:  // there are no arrays
        *value = 0;
        return CUDA_SUCCESS;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

}  // namespace gcr::softgpu

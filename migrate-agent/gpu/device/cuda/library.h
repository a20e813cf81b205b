// The CUDA driver's library: loaded at run time, so that an agent starts on a machine without one
// and reports it. Every CUresult becomes an Error in Library::check.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "migrate-agent/gpu/device/common_calls.h"
#include "migrate-agent/gpu/device/loaded_library.h"
#include "preload/cuda/abi/driver_abi.h"

namespace gcr::device::cuda {

/// X(symbol, parameters): those that HIP does not have, or not in this form.
#define GCR_CUDA_FUNCTIONS(X)                                          \
  X(cuGetErrorName, (CUresult, const char**))                          \
  X(cuGetErrorString, (CUresult, const char**))                        \
  X(cuDevicePrimaryCtxRetain, (CUcontext*, CUdevice))                  \
  X(cuDevicePrimaryCtxRelease_v2, (CUdevice))                          \
  X(cuCtxSetCurrent, (CUcontext))                                      \
  X(cuCheckpointProcessLock, (int, CUcheckpointLockArgs*))             \
  X(cuCheckpointProcessCheckpoint, (int, CUcheckpointCheckpointArgs*)) \
  X(cuCheckpointProcessRestore, (int, CUcheckpointRestoreArgs*))       \
  X(cuCheckpointProcessUnlock, (int, CUcheckpointUnlockArgs*))         \
  X(cuCheckpointProcessGetState, (int, CUprocessState*))               \
  X(cuCheckpointProcessGetRestoreThreadId, (int, int*))

/// The loaded and initialised driver. Immutable after load(); any thread may call through it.
class Library final : public Driver, public std::enable_shared_from_this<Library> {
 public:
  /// See driver.h.
  static Result<std::shared_ptr<const Library>> load();

  const std::vector<GpuInfo>& gpus() const override { return gpus_; }
  Result<std::shared_ptr<Gpu>> open(const GpuInfo& gpu) const override;
  std::unique_ptr<Control> control(pid_t pid) const override;
  bool is_in(pid_t pid) const override;

  /// Success for CUDA_SUCCESS, else "<CUDA_ERROR_NAME> (<text>)" with the fitting code, after
  /// "<doing>: " if that is given.
  Status check(CUresult result) const;
  Status check(CUresult result, std::string_view doing) const {
    return in_context(check(result), doing);
  }

  /// cuMemImportFromShareableHandle takes the descriptor itself, as the value of the pointer.
  static constexpr bool imports_by_value() { return true; }

  static Status place_on_host(CUmemAllocationProp& properties, std::uint32_t node) {
    properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    properties.location.id = static_cast<int>(node);
    return {};
  }

  using Device = CUdevice;
  using DeviceUuid = CUuuid;
  using Attribute = CUdevice_attribute;
  using Pointer = CUdeviceptr;
  using Memory = CUmemGenericAllocationHandle;
  using MemoryProperties = CUmemAllocationProp;
  using HandleType = CUmemAllocationHandleType;
  using Access = CUmemAccessDesc;
  using Stream = CUstream;
  using Module = CUmodule;
  using Function = CUfunction;
  static constexpr auto kComputeMode = CU_DEVICE_ATTRIBUTE_COMPUTE_MODE;
  static constexpr auto kProcessors = CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
  static constexpr auto kPinned = CU_MEM_ALLOCATION_TYPE_PINNED;
  static constexpr auto kOnDevice = CU_MEM_LOCATION_TYPE_DEVICE;
  static constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  static constexpr auto kReadWrite = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  static constexpr unsigned kAllocatedForAll = CU_MEMHOSTALLOC_PORTABLE;
  static constexpr unsigned kLockedForAll = CU_MEMHOSTREGISTER_PORTABLE;
  static constexpr unsigned kNonBlocking = CU_STREAM_NON_BLOCKING;

#define GCR_CUDA_DECLARE(name, params) CUresult(*name) params = nullptr;
#define GCR_COMMON_DECLARE(name, cuda, hip, params) GCR_CUDA_DECLARE(name, params)
  GCR_COMMON_FUNCTIONS(GCR_COMMON_DECLARE)
  GCR_CUDA_FUNCTIONS(GCR_CUDA_DECLARE)
#undef GCR_COMMON_DECLARE
#undef GCR_CUDA_DECLARE

 private:
  Library() = default;
  Status resolve();

  LoadedLibrary library_;
  std::vector<GpuInfo> gpus_;
};

}  // namespace gcr::device::cuda

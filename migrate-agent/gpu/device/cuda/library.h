// The CUDA driver's library: loaded at run time, so that an agent starts on a machine without one
// and reports it. Every CUresult becomes an Error in Library::check.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "migrate-agent/gpu/device/device.h"
#include "migrate-agent/gpu/device/loaded_library.h"
#include "preload/cuda/abi/driver_abi.h"
#include "src/base/result.h"

namespace gcr::device::cuda {

// clang-format off
#define GCR_CUDA_FUNCTIONS(X)                                                              \
  X(cuInit, (unsigned))                                                                            \
  X(cuDriverGetVersion, (int*))                                                                    \
  X(cuGetErrorName, (CUresult, const char**))                                                      \
  X(cuGetErrorString, (CUresult, const char**))                                                    \
  X(cuDeviceGetCount, (int*))                                                                      \
  X(cuDeviceGet, (CUdevice*, int))                                                                 \
  X(cuDeviceGetName, (char*, int, CUdevice))                                                       \
  X(cuDeviceGetUuid_v2, (CUuuid*, CUdevice))                                                       \
  X(cuDeviceTotalMem_v2, (size_t*, CUdevice))                                                      \
  X(cuDeviceGetAttribute, (int*, CUdevice_attribute, CUdevice))                                    \
  X(cuDevicePrimaryCtxRetain, (CUcontext*, CUdevice))                                              \
  X(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                      \
  X(cuCtxSetCurrent, (CUcontext))                                                                  \
  X(cuMemGetInfo_v2, (size_t*, size_t*))                                                           \
  X(cuMemAlloc_v2, (CUdeviceptr*, size_t))                                                         \
  X(cuMemFree_v2, (CUdeviceptr))                                                                   \
  X(cuMemCreate, (CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, unsigned long long)) \
  X(cuMemRelease, (CUmemGenericAllocationHandle))                                                  \
  X(cuMemExportToShareableHandle, (void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long)) \
  X(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType)) \
  X(cuMemAddressReserve, (CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long))          \
  X(cuMemAddressFree, (CUdeviceptr, size_t))                                                       \
  X(cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))     \
  X(cuMemUnmap, (CUdeviceptr, size_t))                                                             \
  X(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc*, size_t))                         \
  X(cuMemcpyDtoHAsync_v2, (void*, CUdeviceptr, size_t, CUstream))                                  \
  X(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void*, size_t, CUstream))                            \
  X(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                            \
  X(cuMemcpyHtoD_v2, (CUdeviceptr, const void*, size_t))                                           \
  X(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                               \
  X(cuModuleLoadData, (CUmodule*, const void*))                                                    \
  X(cuModuleUnload, (CUmodule))                                                                    \
  X(cuModuleGetFunction, (CUfunction*, CUmodule, const char*))                                     \
  X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**, void**)) \
  X(cuStreamCreate, (CUstream*, unsigned))                                                         \
  X(cuStreamDestroy_v2, (CUstream))                                                                \
  X(cuStreamSynchronize, (CUstream))                                                               \
  X(cuMemHostAlloc, (void**, size_t, unsigned))                                                    \
  X(cuMemFreeHost, (void*))                                                                        \
  X(cuMemHostRegister_v2, (void*, size_t, unsigned))                                               \
  X(cuMemHostUnregister, (void*))                                                                  \
  X(cuCheckpointProcessLock, (int, CUcheckpointLockArgs*))                                         \
  X(cuCheckpointProcessCheckpoint, (int, CUcheckpointCheckpointArgs*))                             \
  X(cuCheckpointProcessRestore, (int, CUcheckpointRestoreArgs*))                                   \
  X(cuCheckpointProcessUnlock, (int, CUcheckpointUnlockArgs*))                                     \
  X(cuCheckpointProcessGetState, (int, CUprocessState*))                                           \
  X(cuCheckpointProcessGetRestoreThreadId, (int, int*))
// clang-format on

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
  Status check(CUresult result, std::string_view doing) const;

#define GCR_CUDA_DECLARE(name, params) CUresult(*name) params = nullptr;
  GCR_CUDA_FUNCTIONS(GCR_CUDA_DECLARE)
#undef GCR_CUDA_DECLARE

 private:
  Library() = default;
  Status resolve();
  Status list_gpus();

  LoadedLibrary library_;
  int version_ = 0;
  std::vector<GpuInfo> gpus_;
};

}  // namespace gcr::device::cuda

// HIP's library: loaded at run time, so that an agent starts on a machine without one and reports
// it. Every hipError_t becomes an Error in Library::check.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "migrate-agent/gpu/device/device.h"
#include "migrate-agent/gpu/device/loaded_library.h"
#include "preload/hip/abi/hip_abi.h"
#include "src/base/result.h"

namespace gcr::device::hip {

// clang-format off
#define GCR_HIP_FUNCTIONS(X)                                                                       \
  X(hipInit, (unsigned))                                                                           \
  X(hipRuntimeGetVersion, (int*))                                                                  \
  X(hipGetDeviceCount, (int*))                                                                     \
  X(hipSetDevice, (int))                                                                           \
  X(hipDeviceGet, (hipDevice_t*, int))                                                             \
  X(hipDeviceGetName, (char*, int, hipDevice_t))                                                   \
  X(hipDeviceGetUuid, (hipUUID*, hipDevice_t))                                                     \
  X(hipDeviceGetPCIBusId, (char*, int, int))                                                       \
  X(hipDeviceTotalMem, (size_t*, hipDevice_t))                                                     \
  X(hipDeviceGetAttribute, (int*, hipDeviceAttribute_t, int))                                      \
  X(hipMemGetInfo, (size_t*, size_t*))                                                             \
  X(hipMalloc, (void**, size_t))                                                                   \
  X(hipFree, (void*))                                                                              \
  X(hipMemCreate, (hipMemGenericAllocationHandle_t*, size_t, const hipMemAllocationPropR0503*, unsigned long long)) \
  X(hipMemRelease, (hipMemGenericAllocationHandle_t))                                              \
  X(hipMemExportToShareableHandle, (void*, hipMemGenericAllocationHandle_t, hipMemAllocationHandleType, unsigned long long)) \
  X(hipMemImportFromShareableHandle, (hipMemGenericAllocationHandle_t*, void*, hipMemAllocationHandleType)) \
  X(hipMemAddressReserve, (void**, size_t, size_t, void*, unsigned long long))                     \
  X(hipMemAddressFree, (void*, size_t))                                                            \
  X(hipMemMap, (void*, size_t, size_t, hipMemGenericAllocationHandle_t, unsigned long long))       \
  X(hipMemUnmap, (void*, size_t))                                                                  \
  X(hipMemSetAccess, (void*, size_t, const hipMemAccessDesc*, size_t))                             \
  X(hipMemcpyDtoHAsync, (void*, hipDeviceptr_t, size_t, hipStream_t))                              \
  X(hipMemcpyHtoDAsync, (hipDeviceptr_t, void*, size_t, hipStream_t))                              \
  X(hipMemcpyDtoDAsync, (hipDeviceptr_t, hipDeviceptr_t, size_t, hipStream_t))                     \
  X(hipMemcpyHtoD, (hipDeviceptr_t, void*, size_t))                                                \
  X(hipMemsetD8Async, (hipDeviceptr_t, unsigned char, size_t, hipStream_t))                        \
  X(hipModuleLoadData, (hipModule_t*, const void*))                                                \
  X(hipModuleUnload, (hipModule_t))                                                                \
  X(hipModuleGetFunction, (hipFunction_t*, hipModule_t, const char*))                              \
  X(hipModuleLaunchKernel, (hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, hipStream_t, void**, void**)) \
  X(hipStreamCreateWithFlags, (hipStream_t*, unsigned))                                            \
  X(hipStreamDestroy, (hipStream_t))                                                               \
  X(hipStreamSynchronize, (hipStream_t))                                                           \
  X(hipHostMalloc, (void**, size_t, unsigned))                                                     \
  X(hipHostFree, (void*))                                                                          \
  X(hipHostRegister, (void*, size_t, unsigned))                                                    \
  X(hipHostUnregister, (void*))                                                                    \
  X(hipHostGetDevicePointer, (void**, void*, unsigned))

/// The compiler, in the same library or in libhiprtc.so of the same release.
#define GCR_HIPRTC_FUNCTIONS(X)                                                                    \
  X(hiprtcCreateProgram, (hiprtcProgram*, const char*, const char*, int, const char**, const char**)) \
  X(hiprtcCompileProgram, (hiprtcProgram, int, const char**))                                      \
  X(hiprtcGetProgramLogSize, (hiprtcProgram, size_t*))                                             \
  X(hiprtcGetProgramLog, (hiprtcProgram, char*))                                                   \
  X(hiprtcGetCodeSize, (hiprtcProgram, size_t*))                                                   \
  X(hiprtcGetCode, (hiprtcProgram, char*))                                                         \
  X(hiprtcDestroyProgram, (hiprtcProgram*))
// clang-format on

/// The loaded and initialised library. Any thread may call through it.
class Library final : public Driver, public std::enable_shared_from_this<Library> {
 public:
  /// See driver.h.
  static Result<std::shared_ptr<const Library>> load();

  const std::vector<GpuInfo>& gpus() const override { return gpus_; }
  Result<std::shared_ptr<Gpu>> open(const GpuInfo& gpu) const override;
  std::unique_ptr<Control> control(pid_t pid) const override;
  bool is_in(pid_t pid) const override;

  /// Success for hipSuccess, else "<hipErrorName>" with the fitting code, after "<doing>: " if that
  /// is given.
  Status check(hipError_t result) const;
  Status check(hipError_t result, std::string_view doing) const;

  /// hipMemImportFromShareableHandle takes the descriptor itself from ROCm 7.1 on; before, a
  /// pointer to it (rocm-systems 759, 11020).
  bool imports_by_value() const { return version_ >= 70'100'000; }

  /// A code object of the digest kernel for a GPU, which hipRTC compiles at its first use. Lives as
  /// long as this. Blocks; any thread.
  Result<const char*> digest_code(int ordinal) const;

#define GCR_HIP_DECLARE(name, params) hipError_t(*name) params = nullptr;
  GCR_HIP_FUNCTIONS(GCR_HIP_DECLARE)
#undef GCR_HIP_DECLARE
  const char* (*hipGetErrorName)(hipError_t) = nullptr;

 private:
  Library() = default;
  Status resolve();
  Status resolve_compiler();
  Status list_gpus();
  Status check_compiler(hiprtcResult result, std::string_view doing) const;
  Result<std::vector<char>> compile_digest() const;

#define GCR_HIPRTC_DECLARE(name, params) hiprtcResult(*name) params = nullptr;
  GCR_HIPRTC_FUNCTIONS(GCR_HIPRTC_DECLARE)
#undef GCR_HIPRTC_DECLARE
  const char* (*hiprtcGetErrorString)(hiprtcResult) = nullptr;

  LoadedLibrary library_;
  LoadedLibrary compiler_;  ///< none if the library itself compiles
  std::string release_;     ///< of its SONAME: 5, 6 or 7
  int version_ = 0;         ///< 10000000 * major + 100000 * minor + patch
  std::vector<GpuInfo> gpus_;
  mutable std::mutex mutex_;                              ///< guards what follows
  mutable std::map<int, std::vector<char>> digest_code_;  ///< by ordinal
};

}  // namespace gcr::device::hip

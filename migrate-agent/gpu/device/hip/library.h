// HIP's library: loaded at run time, so that an agent starts on a machine without one and reports
// it. Every hipError_t becomes an Error in Library::check.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "migrate-agent/gpu/device/common_calls.h"
#include "migrate-agent/gpu/device/loaded_library.h"
#include "preload/hip/abi/hip_abi.h"

namespace gcr::device::hip {

/// X(symbol, parameters): those that CUDA does not have, or not in this form.
#define GCR_HIP_FUNCTIONS(X)                 \
  X(hipSetDevice, (int))                     \
  X(hipDeviceGetPCIBusId, (char*, int, int)) \
  X(hipHostGetDevicePointer, (void**, void*, unsigned))

// clang-format off
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
  Status check(hipError_t result, std::string_view doing) const {
    return in_context(check(result), doing);
  }

  /// hipMemImportFromShareableHandle takes the descriptor itself from ROCm 7.1 on; before, a
  /// pointer to it (rocm-systems 759, 11020).
  bool imports_by_value() const { return version_ >= 70'100'000; }

  /// A code object of the digest kernel for a GPU, which hipRTC compiles at its first use. Lives as
  /// long as this. Blocks; any thread.
  Result<const char*> digest_code(int ordinal) const;

  static Status place_on_host(hipMemAllocationPropR0503&, std::uint32_t) {
    return Error(Code::kUnsupported, "HIP makes no host memory of this kind");
  }

  using Device = hipDevice_t;
  using DeviceUuid = hipUUID;
  using Attribute = hipDeviceAttribute_t;
  using Pointer = hipDeviceptr_t;
  using Memory = hipMemGenericAllocationHandle_t;
  using MemoryProperties = hipMemAllocationPropR0503;
  using HandleType = hipMemAllocationHandleType;
  using Access = hipMemAccessDesc;
  using Stream = hipStream_t;
  using Module = hipModule_t;
  using Function = hipFunction_t;
  static constexpr auto kComputeMode = hipDeviceAttributeComputeMode;
  static constexpr auto kProcessors = hipDeviceAttributeMultiprocessorCount;
  static constexpr auto kPinned = hipMemAllocationTypePinned;
  static constexpr auto kOnDevice = hipMemLocationTypeDevice;
  static constexpr auto kDescriptor = hipMemHandleTypePosixFileDescriptor;
  static constexpr auto kReadWrite = hipMemAccessFlagsProtReadWrite;
  static constexpr unsigned kAllocatedForAll = hipHostMallocPortable;
  static constexpr unsigned kLockedForAll = hipHostRegisterPortable;
  static constexpr unsigned kNonBlocking = hipStreamNonBlocking;

#define GCR_HIP_DECLARE(name, params) hipError_t(*name) params = nullptr;
#define GCR_COMMON_DECLARE(name, cuda, hip, params) GCR_HIP_DECLARE(name, params)
  GCR_COMMON_FUNCTIONS(GCR_COMMON_DECLARE)
  GCR_HIP_FUNCTIONS(GCR_HIP_DECLARE)
#undef GCR_COMMON_DECLARE
#undef GCR_HIP_DECLARE
  const char* (*hipGetErrorName)(hipError_t) = nullptr;

 private:
  Library() = default;
  Status resolve();
  Status resolve_compiler();
  Status read_pci_addresses();
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

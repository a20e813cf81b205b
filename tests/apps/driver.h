// The CUDA driver as the sample programs use it: loaded at run time, so that one binary runs on the
// software GPU, on a real one, and under the preload library. Any failure ends the program with one
// line on standard error; there is nothing sensible that a sample could do instead.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "preload/cuda/abi/driver_abi.h"

namespace gcr::apps {

// member name, driver function, version asked for, parameter types
#define GCR_APPS_FUNCTIONS(X)                                                                     \
  X(init, cuInit, 2000, (unsigned))                                                               \
  X(error_name, cuGetErrorName, 6000, (CUresult, const char**))                                   \
  X(device, cuDeviceGet, 2000, (CUdevice*, int))                                                  \
  X(device_count, cuDeviceGetCount, 2000, (int*))                                                 \
  X(attribute, cuDeviceGetAttribute, 2000, (int*, CUdevice_attribute, CUdevice))                  \
  X(retain_primary, cuDevicePrimaryCtxRetain, 7000, (CUcontext*, CUdevice))                       \
  X(set_current, cuCtxSetCurrent, 4000, (CUcontext))                                              \
  X(synchronize, cuCtxSynchronize, 2000, ())                                                      \
  X(load_module, cuModuleLoadData, 2000, (CUmodule*, const void*))                                \
  X(get_function, cuModuleGetFunction, 2000, (CUfunction*, CUmodule, const char*))                \
  X(get_global, cuModuleGetGlobal, 3020, (CUdeviceptr*, std::size_t*, CUmodule, const char*))     \
  X(alloc, cuMemAlloc, 3020, (CUdeviceptr*, std::size_t))                                         \
  X(alloc_pitch, cuMemAllocPitch, 3020,                                                           \
    (CUdeviceptr*, std::size_t*, std::size_t, std::size_t, unsigned))                             \
  X(free, cuMemFree, 3020, (CUdeviceptr))                                                         \
  X(alloc_async, cuMemAllocAsync, 11020, (CUdeviceptr*, std::size_t, CUstream))                   \
  X(free_async, cuMemFreeAsync, 11020, (CUdeviceptr, CUstream))                                   \
  X(host_alloc, cuMemHostAlloc, 2020, (void**, std::size_t, unsigned))                            \
  X(set_bytes, cuMemsetD8, 3020, (CUdeviceptr, unsigned char, std::size_t))                       \
  X(set_words, cuMemsetD32, 3020, (CUdeviceptr, unsigned, std::size_t))                           \
  X(copy_to_device, cuMemcpyHtoD, 3020, (CUdeviceptr, const void*, std::size_t))                  \
  X(copy_to_host, cuMemcpyDtoH, 3020, (void*, CUdeviceptr, std::size_t))                          \
  X(copy_to_host_async, cuMemcpyDtoHAsync, 3020, (void*, CUdeviceptr, std::size_t, CUstream))     \
  X(set_bytes_async, cuMemsetD8Async, 3020, (CUdeviceptr, unsigned char, std::size_t, CUstream))  \
  X(set_words_async, cuMemsetD32Async, 3020, (CUdeviceptr, unsigned, std::size_t, CUstream))      \
  X(create_stream, cuStreamCreate, 2000, (CUstream*, unsigned))                                   \
  X(synchronize_stream, cuStreamSynchronize, 2000, (CUstream))                                    \
  X(launch_host, cuLaunchHostFunc, 10000, (CUstream, CUhostFn, void*))                            \
  X(launch, cuLaunchKernel, 4000,                                                                 \
    (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,  \
     void**, void**))                                                                             \
  X(begin_capture, cuStreamBeginCapture, 10010, (CUstream, CUstreamCaptureMode))                  \
  X(end_capture, cuStreamEndCapture, 10000, (CUstream, CUgraph*))                                 \
  X(instantiate, cuGraphInstantiateWithFlags, 11040, (CUgraphExec*, CUgraph, unsigned long long)) \
  X(launch_graph, cuGraphLaunch, 10000, (CUgraphExec, CUstream))                                  \
  X(granularity, cuMemGetAllocationGranularity, 10020,                                            \
    (std::size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags))                 \
  X(reserve, cuMemAddressReserve, 10020,                                                          \
    (CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr, unsigned long long))                    \
  X(create, cuMemCreate, 10020,                                                                   \
    (CUmemGenericAllocationHandle*, std::size_t, const CUmemAllocationProp*, unsigned long long)) \
  X(map, cuMemMap, 10020,                                                                         \
    (CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle, unsigned long long))    \
  X(set_access, cuMemSetAccess, 10020,                                                            \
    (CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t))                              \
  X(unmap, cuMemUnmap, 10020, (CUdeviceptr, std::size_t))                                         \
  X(release, cuMemRelease, 10020, (CUmemGenericAllocationHandle))                                 \
  X(export_memory, cuMemExportToShareableHandle, 10020,                                           \
    (void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long))         \
  X(import_memory, cuMemImportFromShareableHandle, 10020,                                         \
    (CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType))                            \
  X(ipc_handle, cuIpcGetMemHandle, 4010, (CUipcMemHandle*, CUdeviceptr))                          \
  X(ipc_open, cuIpcOpenMemHandle, 11000, (CUdeviceptr*, CUipcMemHandle, unsigned))

/// The functions by the short names of the list above.
struct Driver {
#define GCR_APPS_MEMBER(member, name, version, parameters) CUresult(*member) parameters = nullptr;
  GCR_APPS_FUNCTIONS(GCR_APPS_MEMBER)
#undef GCR_APPS_MEMBER
};

/// Says what failed and ends the program with status 1.
[[noreturn]] void fail(std::string_view doing, const std::string& why);

/// How many devices there are; initialises the driver.
int device_count();

/// A device with its primary context current in the calling thread, and the kernels loaded.
class Gpu {
 public:
  explicit Gpu(int ordinal);

  const Driver& driver() const { return driver_; }
  CUdevice device() const { return device_; }

  /// Ends the program if `result` is an error.
  void check(CUresult result, std::string_view doing) const;

  CUdeviceptr allocate(std::size_t bytes) const;
  CUdeviceptr variable(const char* name) const;
  std::uint64_t read_word(CUdeviceptr address) const;
  void write_word(CUdeviceptr address, std::uint64_t value) const;

  /// Launches a kernel of kernels.ptx with 64-bit arguments on a grid that suits `work_items`.
  void launch(const char* kernel, std::vector<std::uint64_t> arguments, std::uint64_t work_items,
              CUstream stream = nullptr) const;
  void synchronize() const { check(driver_.synchronize(), "synchronise"); }

 private:
  Driver driver_;
  CUdevice device_ = 0;
  CUmodule module_ = nullptr;
};

/// Set by SIGTERM and SIGINT once catch_termination() was called.
bool termination_asked();
void catch_termination();

}  // namespace gcr::apps

// CUDA's driver or HIP as the sample programs use them: loaded at run time, so that one binary runs
// on the software GPU, on a real one of either vendor, and under the preload library. Each failure
// ends the program with one line on standard error, because a sample cannot handle it.
//
// HIP functions have the CUDA signatures, except those of hip_forms.h, so programs use only
// the types of CUDA.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "preload/cuda/abi/driver_abi.h"

namespace gcr::apps {

// member name, CUDA's function, requested version, the HIP function that replaces it, parameter
// types
#define GCR_APPS_FUNCTIONS(X)                                                                     \
  X(init, cuInit, 2000, hipInit, (unsigned))                                                      \
  X(error_name, cuGetErrorName, 6000, none, (CUresult, const char**))                             \
  X(device, cuDeviceGet, 2000, hipDeviceGet, (CUdevice*, int))                                    \
  X(device_count, cuDeviceGetCount, 2000, hipGetDeviceCount, (int*))                              \
  X(attribute, cuDeviceGetAttribute, 2000, none, (int*, CUdevice_attribute, CUdevice))            \
  X(retain_primary, cuDevicePrimaryCtxRetain, 7000, hipDevicePrimaryCtxRetain,                    \
    (CUcontext*, CUdevice))                                                                       \
  X(create_context, cuCtxCreate, 3020, hipCtxCreate, (CUcontext*, unsigned, CUdevice))            \
  X(destroy_context, cuCtxDestroy, 4000, hipCtxDestroy, (CUcontext))                              \
  X(current, cuCtxGetCurrent, 4000, hipCtxGetCurrent, (CUcontext*))                               \
  X(set_current, cuCtxSetCurrent, 4000, hipCtxSetCurrent, (CUcontext))                            \
  X(synchronize, cuCtxSynchronize, 2000, hipDeviceSynchronize, ())                                \
  X(load_module, cuModuleLoadData, 2000, none, (CUmodule*, const void*))                          \
  X(get_function, cuModuleGetFunction, 2000, hipModuleGetFunction,                                \
    (CUfunction*, CUmodule, const char*))                                                         \
  X(get_global, cuModuleGetGlobal, 3020, hipModuleGetGlobal,                                      \
    (CUdeviceptr*, std::size_t*, CUmodule, const char*))                                          \
  X(alloc, cuMemAlloc, 3020, hipMalloc, (CUdeviceptr*, std::size_t))                              \
  X(memory_info, cuMemGetInfo, 3020, hipMemGetInfo, (std::size_t*, std::size_t*))                 \
  X(alloc_pitch, cuMemAllocPitch, 3020, hipMemAllocPitch,                                         \
    (CUdeviceptr*, std::size_t*, std::size_t, std::size_t, unsigned))                             \
  X(free, cuMemFree, 3020, hipFree, (CUdeviceptr))                                                \
  X(alloc_managed, cuMemAllocManaged, 6000, hipMallocManaged,                                     \
    (CUdeviceptr*, std::size_t, unsigned))                                                        \
  X(alloc_async, cuMemAllocAsync, 11020, hipMallocAsync, (CUdeviceptr*, std::size_t, CUstream))   \
  X(free_async, cuMemFreeAsync, 11020, hipFreeAsync, (CUdeviceptr, CUstream))                     \
  X(pointer_attribute, cuPointerGetAttribute, 4000, hipPointerGetAttribute,                       \
    (void*, CUpointer_attribute, CUdeviceptr))                                                    \
  X(host_alloc, cuMemHostAlloc, 2020, hipHostMalloc, (void**, std::size_t, unsigned))             \
  X(set_bytes, cuMemsetD8, 3020, hipMemsetD8, (CUdeviceptr, unsigned char, std::size_t))          \
  X(set_words, cuMemsetD32, 3020, hipMemsetD32, (CUdeviceptr, unsigned, std::size_t))             \
  X(copy_to_device, cuMemcpyHtoD, 3020, hipMemcpyHtoD, (CUdeviceptr, const void*, std::size_t))   \
  X(copy_to_host, cuMemcpyDtoH, 3020, hipMemcpyDtoH, (void*, CUdeviceptr, std::size_t))           \
  X(copy_to_host_async, cuMemcpyDtoHAsync, 3020, hipMemcpyDtoHAsync,                              \
    (void*, CUdeviceptr, std::size_t, CUstream))                                                  \
  X(set_bytes_async, cuMemsetD8Async, 3020, hipMemsetD8Async,                                     \
    (CUdeviceptr, unsigned char, std::size_t, CUstream))                                          \
  X(set_words_async, cuMemsetD32Async, 3020, hipMemsetD32Async,                                   \
    (CUdeviceptr, unsigned, std::size_t, CUstream))                                               \
  X(create_stream, cuStreamCreate, 2000, hipStreamCreateWithFlags, (CUstream*, unsigned))         \
  X(synchronize_stream, cuStreamSynchronize, 2000, hipStreamSynchronize, (CUstream))              \
  X(launch_host, cuLaunchHostFunc, 10000, hipLaunchHostFunc, (CUstream, CUhostFn, void*))         \
  X(launch, cuLaunchKernel, 4000, hipModuleLaunchKernel,                                          \
    (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,  \
     void**, void**))                                                                             \
  X(begin_capture, cuStreamBeginCapture, 10010, hipStreamBeginCapture,                            \
    (CUstream, CUstreamCaptureMode))                                                              \
  X(end_capture, cuStreamEndCapture, 10000, hipStreamEndCapture, (CUstream, CUgraph*))            \
  X(instantiate, cuGraphInstantiateWithFlags, 11040, hipGraphInstantiateWithFlags,                \
    (CUgraphExec*, CUgraph, unsigned long long))                                                  \
  X(launch_graph, cuGraphLaunch, 10000, hipGraphLaunch, (CUgraphExec, CUstream))                  \
  X(granularity, cuMemGetAllocationGranularity, 10020, hipMemGetAllocationGranularity,            \
    (std::size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags))                 \
  X(reserve, cuMemAddressReserve, 10020, hipMemAddressReserve,                                    \
    (CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr, unsigned long long))                    \
  X(create, cuMemCreate, 10020, hipMemCreate,                                                     \
    (CUmemGenericAllocationHandle*, std::size_t, const CUmemAllocationProp*, unsigned long long)) \
  X(map, cuMemMap, 10020, hipMemMap,                                                              \
    (CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle, unsigned long long))    \
  X(set_access, cuMemSetAccess, 10020, hipMemSetAccess,                                           \
    (CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t))                              \
  X(unmap, cuMemUnmap, 10020, hipMemUnmap, (CUdeviceptr, std::size_t))                            \
  X(release, cuMemRelease, 10020, hipMemRelease, (CUmemGenericAllocationHandle))                  \
  X(export_memory, cuMemExportToShareableHandle, 10020, hipMemExportToShareableHandle,            \
    (void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long))         \
  X(import_memory, cuMemImportFromShareableHandle, 10020, none,                                   \
    (CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType))                            \
  X(ipc_handle, cuIpcGetMemHandle, 4010, hipIpcGetMemHandle, (CUipcMemHandle*, CUdeviceptr))      \
  X(ipc_open, cuIpcOpenMemHandle, 11000, hipIpcOpenMemHandle,                                     \
    (CUdeviceptr*, CUipcMemHandle, unsigned))                                                     \
  X(ipc_close, cuIpcCloseMemHandle, 4010, hipIpcCloseMemHandle, (CUdeviceptr))                    \
  X(create_event, cuEventCreate, 2000, hipEventCreateWithFlags, (CUevent*, unsigned))             \
  X(destroy_event, cuEventDestroy, 4000, hipEventDestroy, (CUevent))                              \
  X(record_event, cuEventRecord, 2000, hipEventRecord, (CUevent, CUstream))                       \
  X(wait_event, cuStreamWaitEvent, 3020, hipStreamWaitEvent, (CUstream, CUevent, unsigned))       \
  X(event_handle, cuIpcGetEventHandle, 4010, hipIpcGetEventHandle, (CUipcEventHandle*, CUevent))  \
  X(open_event, cuIpcOpenEventHandle, 4010, hipIpcOpenEventHandle, (CUevent*, CUipcEventHandle))

/// The functions by the short names of the list above.
struct Driver {
#define GCR_APPS_MEMBER(member, cuda, version, hip, parameters) \
  CUresult(*member) parameters = nullptr;
  GCR_APPS_FUNCTIONS(GCR_APPS_MEMBER)
#undef GCR_APPS_MEMBER
};

/// Prints the failed call and ends the program with status 1.
[[noreturn]] void fail(std::string_view doing, const std::string& why);

/// CUDA's, or HIP's if there is no CUDA. GCR_APP_RUNTIME, "cuda" or "hip", selects one.
Driver load_driver();

/// The number of devices; initialises the driver.
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

  /// Launches a kernel of kernels.cu with 64-bit arguments on a grid that suits `work_items`.
  void launch(const char* kernel, std::vector<std::uint64_t> arguments, std::uint64_t work_items,
              CUstream stream = nullptr) const;
  void synchronize() const { check(driver_.synchronize(), "synchronise"); }

 private:
  Driver driver_;
  CUdevice device_ = 0;
  CUmodule module_ = nullptr;
};

/// Set by SIGTERM and SIGINT once catch_termination() was called.
bool termination_requested();
void catch_termination();

}  // namespace gcr::apps

// The driver's functions as the tests call them: looked up in one library file, never linked. In a
// HIP library they are the corresponding HIP functions: those in the table have the same binary
// interface and the same numbers of results, and hip_calls.cc adapts the others.
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "preload/cuda/abi/driver_abi.h"

namespace gcr::softgpu::test {

// ABI symbol, HIP's symbol, parameter types
#define SOFTGPU_TEST_CALLS(X)                                                                      \
  X(cuInit, hipInit, (unsigned))                                                                   \
  X(cuGetErrorName, hipDrvGetErrorName, (CUresult, const char**))                                  \
  X(cuGetProcAddress_v2, hipGetProcAddress,                                                        \
    (const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*))                       \
  X(cuDeviceGetCount, hipGetDeviceCount, (int*))                                                   \
  X(cuDeviceGetUuid_v2, hipDeviceGetUuid, (CUuuid*, CUdevice))                                     \
  X(cuDeviceTotalMem_v2, hipDeviceTotalMem, (std::size_t*, CUdevice))                              \
  X(cuCtxCreate_v2, hipCtxCreate, (CUcontext*, unsigned, CUdevice))                                \
  X(cuCtxDestroy_v2, none, (CUcontext))                                                            \
  X(cuCtxSetCurrent, hipCtxSetCurrent, (CUcontext))                                                \
  X(cuCtxGetCurrent, hipCtxGetCurrent, (CUcontext*))                                               \
  X(cuCtxSynchronize, hipCtxSynchronize, ())                                                       \
  X(cuCtxEnablePeerAccess, hipCtxEnablePeerAccess, (CUcontext, unsigned))                          \
  X(cuCtxDisablePeerAccess, hipCtxDisablePeerAccess, (CUcontext))                                  \
  X(cuDeviceCanAccessPeer, hipDeviceCanAccessPeer, (int*, CUdevice, CUdevice))                     \
  X(cuDeviceGetAttribute, none, (int*, CUdevice_attribute, CUdevice))                              \
  X(cuDeviceGetP2PAttribute, none, (int*, CUdevice_P2PAttribute, CUdevice, CUdevice))              \
  X(cuMemAlloc_v2, hipMalloc, (CUdeviceptr*, std::size_t))                                         \
  X(cuMemAllocPitch_v2, hipMemAllocPitch,                                                          \
    (CUdeviceptr*, std::size_t*, std::size_t, std::size_t, unsigned))                              \
  X(cuMemAllocManaged, hipMallocManaged, (CUdeviceptr*, std::size_t, unsigned))                    \
  X(cuMemFree_v2, hipFree, (CUdeviceptr))                                                          \
  X(cuMemGetInfo_v2, hipMemGetInfo, (std::size_t*, std::size_t*))                                  \
  X(cuMemGetAddressRange_v2, hipMemGetAddressRange, (CUdeviceptr*, std::size_t*, CUdeviceptr))     \
  X(cuMemAllocAsync, hipMallocAsync, (CUdeviceptr*, std::size_t, CUstream))                        \
  X(cuMemFreeAsync, hipFreeAsync, (CUdeviceptr, CUstream))                                         \
  X(cuMemHostAlloc, hipHostMalloc, (void**, std::size_t, unsigned))                                \
  X(cuMemFreeHost, hipHostFree, (void*))                                                           \
  X(cuMemHostRegister_v2, hipHostRegister, (void*, std::size_t, unsigned))                         \
  X(cuMemHostUnregister, hipHostUnregister, (void*))                                               \
  X(cuPointerGetAttribute, hipPointerGetAttribute, (void*, CUpointer_attribute, CUdeviceptr))      \
  X(cuIpcGetMemHandle, hipIpcGetMemHandle, (CUipcMemHandle*, CUdeviceptr))                         \
  X(cuIpcOpenMemHandle_v2, hipIpcOpenMemHandle, (CUdeviceptr*, CUipcMemHandle, unsigned))          \
  X(cuIpcCloseMemHandle, hipIpcCloseMemHandle, (CUdeviceptr))                                      \
  X(cuIpcGetEventHandle, hipIpcGetEventHandle, (CUipcEventHandle*, CUevent))                       \
  X(cuIpcOpenEventHandle, hipIpcOpenEventHandle, (CUevent*, CUipcEventHandle))                     \
  X(cuMemAddressReserve, hipMemAddressReserve,                                                     \
    (CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr, unsigned long long))                     \
  X(cuMemAddressFree, hipMemAddressFree, (CUdeviceptr, std::size_t))                               \
  X(cuMemCreate, hipMemCreate,                                                                     \
    (CUmemGenericAllocationHandle*, std::size_t, const CUmemAllocationProp*, unsigned long long))  \
  X(cuMemMap, hipMemMap,                                                                           \
    (CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle, unsigned long long))     \
  X(cuMemSetAccess, hipMemSetAccess,                                                               \
    (CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t))                               \
  X(cuMemGetAccess, hipMemGetAccess, (unsigned long long*, const CUmemLocation*, CUdeviceptr))     \
  X(cuMemGetAllocationGranularity, hipMemGetAllocationGranularity,                                 \
    (std::size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags))                  \
  X(cuMemGetAllocationPropertiesFromHandle, hipMemGetAllocationPropertiesFromHandle,               \
    (CUmemAllocationProp*, CUmemGenericAllocationHandle))                                          \
  X(cuMemRetainAllocationHandle, hipMemRetainAllocationHandle,                                     \
    (CUmemGenericAllocationHandle*, void*))                                                        \
  X(cuMemUnmap, hipMemUnmap, (CUdeviceptr, std::size_t))                                           \
  X(cuMemRelease, hipMemRelease, (CUmemGenericAllocationHandle))                                   \
  X(cuMemExportToShareableHandle, hipMemExportToShareableHandle,                                   \
    (void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long))          \
  X(cuMemImportFromShareableHandle, none,                                                          \
    (CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType))                             \
  X(cuMemcpyHtoD_v2, hipMemcpyHtoD, (CUdeviceptr, const void*, std::size_t))                       \
  X(cuMemcpyDtoH_v2, hipMemcpyDtoH, (void*, CUdeviceptr, std::size_t))                             \
  X(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync, (CUdeviceptr, const void*, std::size_t, CUstream))   \
  X(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync, (CUdeviceptr, CUdeviceptr, std::size_t, CUstream))   \
  X(cuMemcpyPeer, none, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, std::size_t))             \
  X(cuMemcpyPeerAsync, none,                                                                       \
    (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, std::size_t, CUstream))                       \
  X(cuMemcpy2D_v2, hipMemcpyParam2D, (const CUDA_MEMCPY2D*))                                       \
  X(cuMemsetD8_v2, hipMemsetD8, (CUdeviceptr, unsigned char, std::size_t))                         \
  X(cuMemsetD32_v2, hipMemsetD32, (CUdeviceptr, unsigned, std::size_t))                            \
  X(cuMemsetD32Async, hipMemsetD32Async, (CUdeviceptr, unsigned, std::size_t, CUstream))           \
  X(cuStreamCreate, hipStreamCreateWithFlags, (CUstream*, unsigned))                               \
  X(cuStreamDestroy_v2, hipStreamDestroy, (CUstream))                                              \
  X(cuStreamSynchronize, hipStreamSynchronize, (CUstream))                                         \
  X(cuStreamQuery, hipStreamQuery, (CUstream))                                                     \
  X(cuStreamWaitEvent, hipStreamWaitEvent, (CUstream, CUevent, unsigned))                          \
  X(cuStreamBeginCapture_v2, hipStreamBeginCapture, (CUstream, CUstreamCaptureMode))               \
  X(cuStreamEndCapture, hipStreamEndCapture, (CUstream, CUgraph*))                                 \
  X(cuStreamGetId, none, (CUstream, unsigned long long*))                                          \
  X(cuStreamGetCtx, none, (CUstream, CUcontext*))                                                  \
  X(cuStreamIsCapturing, hipStreamIsCapturing, (CUstream, CUstreamCaptureStatus*))                 \
  X(cuThreadExchangeStreamCaptureMode, hipThreadExchangeStreamCaptureMode, (CUstreamCaptureMode*)) \
  X(cuLaunchHostFunc, hipLaunchHostFunc, (CUstream, CUhostFn, void*))                              \
  X(cuEventCreate, hipEventCreateWithFlags, (CUevent*, unsigned))                                  \
  X(cuEventRecord, hipEventRecord, (CUevent, CUstream))                                            \
  X(cuEventQuery, hipEventQuery, (CUevent))                                                        \
  X(cuEventSynchronize, hipEventSynchronize, (CUevent))                                            \
  X(cuEventElapsedTime, hipEventElapsedTime, (float*, CUevent, CUevent))                           \
  X(cuEventDestroy_v2, hipEventDestroy, (CUevent))                                                 \
  X(cuModuleLoadData, none, (CUmodule*, const void*))                                              \
  X(cuModuleUnload, hipModuleUnload, (CUmodule))                                                   \
  X(cuModuleGetFunction, hipModuleGetFunction, (CUfunction*, CUmodule, const char*))               \
  X(cuModuleGetGlobal_v2, hipModuleGetGlobal, (CUdeviceptr*, std::size_t*, CUmodule, const char*)) \
  X(cuLibraryLoadData, none,                                                                       \
    (CUlibrary*, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,           \
     unsigned))                                                                                    \
  X(cuLibraryGetKernel, hipLibraryGetKernel, (CUkernel*, CUlibrary, const char*))                  \
  X(cuLibraryUnload, hipLibraryUnload, (CUlibrary))                                                \
  X(cuLaunchKernel, hipModuleLaunchKernel,                                                         \
    (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,   \
     void**, void**))                                                                              \
  X(cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags,                                     \
    (CUgraphExec*, CUgraph, unsigned long long))                                                   \
  X(cuGraphGetNodes, hipGraphGetNodes, (CUgraph, CUgraphNode*, std::size_t*))                      \
  X(cuGraphLaunch, hipGraphLaunch, (CUgraphExec, CUstream))                                        \
  X(cuGraphExecDestroy, hipGraphExecDestroy, (CUgraphExec))                                        \
  X(cuGraphDestroy, hipGraphDestroy, (CUgraph))                                                    \
  X(cuCheckpointProcessGetState, none, (int, CUprocessState*))                                     \
  X(cuCheckpointProcessGetRestoreThreadId, none, (int, int*))                                      \
  X(cuCheckpointProcessLock, none, (int, CUcheckpointLockArgs*))                                   \
  X(cuCheckpointProcessCheckpoint, none, (int, CUcheckpointCheckpointArgs*))                       \
  X(cuCheckpointProcessRestore, none, (int, CUcheckpointRestoreArgs*))                             \
  X(cuCheckpointProcessUnlock, none, (int, CUcheckpointUnlockArgs*))

struct Calls {
#define SOFTGPU_TEST_MEMBER(symbol, hip_symbol, parameters) CUresult(*symbol) parameters = nullptr;
  SOFTGPU_TEST_CALLS(SOFTGPU_TEST_MEMBER)
#undef SOFTGPU_TEST_MEMBER

  /// Loads the library; a missing function ends the program.
  explicit Calls(const char* library) {
    void* handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      std::fprintf(stderr, "%s\n", ::dlerror());
      std::abort();
    }
    hip = ::dlsym(handle, "hipInit") != nullptr;
    if (hip) adapt_hip(handle);
#define SOFTGPU_TEST_LOAD(symbol, hip_symbol, parameters)                                       \
  if (this->symbol == nullptr) {                                                                \
    this->symbol =                                                                              \
        reinterpret_cast<CUresult(*) parameters>(::dlsym(handle, hip ? #hip_symbol : #symbol)); \
  }                                                                                             \
  if (this->symbol == nullptr) std::abort();
    SOFTGPU_TEST_CALLS(SOFTGPU_TEST_LOAD)
#undef SOFTGPU_TEST_LOAD
  }

  bool hip = false;  ///< they are HIP's

 private:
  /// Fills in the functions whose signatures differ in HIP. One HIP library per process.
  void adapt_hip(void* library);
};

}  // namespace gcr::softgpu::test

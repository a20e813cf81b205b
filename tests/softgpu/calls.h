// The driver's functions as the tests call them: looked up in one library file, never linked.
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "preload/cuda/abi/driver_abi.h"

namespace gcr::softgpu::test {

// ABI symbol and parameter types
#define SOFTGPU_TEST_CALLS(X)                                                                     \
  X(cuInit, (unsigned))                                                                           \
  X(cuGetErrorName, (CUresult, const char**))                                                     \
  X(cuGetProcAddress_v2, (const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*)) \
  X(cuDeviceGetCount, (int*))                                                                     \
  X(cuDeviceGetUuid_v2, (CUuuid*, CUdevice))                                                      \
  X(cuDeviceTotalMem_v2, (std::size_t*, CUdevice))                                                \
  X(cuCtxCreate_v2, (CUcontext*, unsigned, CUdevice))                                             \
  X(cuCtxDestroy_v2, (CUcontext))                                                                 \
  X(cuCtxSetCurrent, (CUcontext))                                                                 \
  X(cuCtxGetCurrent, (CUcontext*))                                                                \
  X(cuCtxSynchronize, ())                                                                         \
  X(cuCtxEnablePeerAccess, (CUcontext, unsigned))                                                 \
  X(cuCtxDisablePeerAccess, (CUcontext))                                                          \
  X(cuDeviceCanAccessPeer, (int*, CUdevice, CUdevice))                                            \
  X(cuDeviceGetAttribute, (int*, CUdevice_attribute, CUdevice))                                   \
  X(cuDeviceGetP2PAttribute, (int*, CUdevice_P2PAttribute, CUdevice, CUdevice))                   \
  X(cuMemAlloc_v2, (CUdeviceptr*, std::size_t))                                                   \
  X(cuMemAllocPitch_v2, (CUdeviceptr*, std::size_t*, std::size_t, std::size_t, unsigned))         \
  X(cuMemAllocManaged, (CUdeviceptr*, std::size_t, unsigned))                                     \
  X(cuMemFree_v2, (CUdeviceptr))                                                                  \
  X(cuMemGetInfo_v2, (std::size_t*, std::size_t*))                                                \
  X(cuMemGetAddressRange_v2, (CUdeviceptr*, std::size_t*, CUdeviceptr))                           \
  X(cuMemAllocAsync, (CUdeviceptr*, std::size_t, CUstream))                                       \
  X(cuMemFreeAsync, (CUdeviceptr, CUstream))                                                      \
  X(cuMemHostAlloc, (void**, std::size_t, unsigned))                                              \
  X(cuMemFreeHost, (void*))                                                                       \
  X(cuMemHostRegister_v2, (void*, std::size_t, unsigned))                                         \
  X(cuMemHostUnregister, (void*))                                                                 \
  X(cuPointerGetAttribute, (void*, CUpointer_attribute, CUdeviceptr))                             \
  X(cuIpcGetMemHandle, (CUipcMemHandle*, CUdeviceptr))                                            \
  X(cuIpcOpenMemHandle_v2, (CUdeviceptr*, CUipcMemHandle, unsigned))                              \
  X(cuIpcCloseMemHandle, (CUdeviceptr))                                                           \
  X(cuMemAddressReserve,                                                                          \
    (CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr, unsigned long long))                    \
  X(cuMemAddressFree, (CUdeviceptr, std::size_t))                                                 \
  X(cuMemCreate,                                                                                  \
    (CUmemGenericAllocationHandle*, std::size_t, const CUmemAllocationProp*, unsigned long long)) \
  X(cuMemMap,                                                                                     \
    (CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle, unsigned long long))    \
  X(cuMemSetAccess, (CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t))              \
  X(cuMemGetAccess, (unsigned long long*, const CUmemLocation*, CUdeviceptr))                     \
  X(cuMemGetAllocationGranularity,                                                                \
    (std::size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags))                 \
  X(cuMemGetAllocationPropertiesFromHandle, (CUmemAllocationProp*, CUmemGenericAllocationHandle)) \
  X(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle*, void*))                          \
  X(cuMemUnmap, (CUdeviceptr, std::size_t))                                                       \
  X(cuMemRelease, (CUmemGenericAllocationHandle))                                                 \
  X(cuMemExportToShareableHandle,                                                                 \
    (void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long))         \
  X(cuMemImportFromShareableHandle,                                                               \
    (CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType))                            \
  X(cuMemcpyHtoD_v2, (CUdeviceptr, const void*, std::size_t))                                     \
  X(cuMemcpyDtoH_v2, (void*, CUdeviceptr, std::size_t))                                           \
  X(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void*, std::size_t, CUstream))                      \
  X(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, std::size_t, CUstream))                      \
  X(cuMemcpyPeer, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, std::size_t))                  \
  X(cuMemcpyPeerAsync, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, std::size_t, CUstream))   \
  X(cuMemcpy2D_v2, (const CUDA_MEMCPY2D*))                                                        \
  X(cuMemsetD8_v2, (CUdeviceptr, unsigned char, std::size_t))                                     \
  X(cuMemsetD32_v2, (CUdeviceptr, unsigned, std::size_t))                                         \
  X(cuMemsetD32Async, (CUdeviceptr, unsigned, std::size_t, CUstream))                             \
  X(cuStreamCreate, (CUstream*, unsigned))                                                        \
  X(cuStreamDestroy_v2, (CUstream))                                                               \
  X(cuStreamSynchronize, (CUstream))                                                              \
  X(cuStreamQuery, (CUstream))                                                                    \
  X(cuStreamWaitEvent, (CUstream, CUevent, unsigned))                                             \
  X(cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode))                                     \
  X(cuStreamEndCapture, (CUstream, CUgraph*))                                                     \
  X(cuStreamGetId, (CUstream, unsigned long long*))                                               \
  X(cuStreamGetCtx, (CUstream, CUcontext*))                                                       \
  X(cuStreamIsCapturing, (CUstream, CUstreamCaptureStatus*))                                      \
  X(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode*))                                    \
  X(cuLaunchHostFunc, (CUstream, CUhostFn, void*))                                                \
  X(cuEventCreate, (CUevent*, unsigned))                                                          \
  X(cuEventRecord, (CUevent, CUstream))                                                           \
  X(cuEventQuery, (CUevent))                                                                      \
  X(cuEventSynchronize, (CUevent))                                                                \
  X(cuEventElapsedTime, (float*, CUevent, CUevent))                                               \
  X(cuEventDestroy_v2, (CUevent))                                                                 \
  X(cuModuleLoadData, (CUmodule*, const void*))                                                   \
  X(cuModuleUnload, (CUmodule))                                                                   \
  X(cuModuleGetFunction, (CUfunction*, CUmodule, const char*))                                    \
  X(cuModuleGetGlobal_v2, (CUdeviceptr*, std::size_t*, CUmodule, const char*))                    \
  X(cuLibraryLoadData, (CUlibrary*, const void*, CUjit_option*, void**, unsigned,                 \
                        CUlibraryOption*, void**, unsigned))                                      \
  X(cuLibraryGetKernel, (CUkernel*, CUlibrary, const char*))                                      \
  X(cuLibraryUnload, (CUlibrary))                                                                 \
  X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,      \
                     unsigned, CUstream, void**, void**))                                         \
  X(cuGraphInstantiateWithFlags, (CUgraphExec*, CUgraph, unsigned long long))                     \
  X(cuGraphGetNodes, (CUgraph, CUgraphNode*, std::size_t*))                                       \
  X(cuGraphLaunch, (CUgraphExec, CUstream))                                                       \
  X(cuGraphExecDestroy, (CUgraphExec))                                                            \
  X(cuGraphDestroy, (CUgraph))                                                                    \
  X(cuCheckpointProcessGetState, (int, CUprocessState*))                                          \
  X(cuCheckpointProcessGetRestoreThreadId, (int, int*))                                           \
  X(cuCheckpointProcessLock, (int, CUcheckpointLockArgs*))                                        \
  X(cuCheckpointProcessCheckpoint, (int, CUcheckpointCheckpointArgs*))                            \
  X(cuCheckpointProcessRestore, (int, CUcheckpointRestoreArgs*))                                  \
  X(cuCheckpointProcessUnlock, (int, CUcheckpointUnlockArgs*))

struct Calls {
#define SOFTGPU_TEST_MEMBER(symbol, parameters) CUresult(*symbol) parameters = nullptr;
  SOFTGPU_TEST_CALLS(SOFTGPU_TEST_MEMBER)
#undef SOFTGPU_TEST_MEMBER

  /// Loads the library; a missing function ends the program.
  explicit Calls(const char* library) {
    void* handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      std::fprintf(stderr, "%s\n", ::dlerror());
      std::abort();
    }
#define SOFTGPU_TEST_LOAD(symbol, parameters)                                        \
  this->symbol = reinterpret_cast<CUresult(*) parameters>(::dlsym(handle, #symbol)); \
  if (this->symbol == nullptr) std::abort();
    SOFTGPU_TEST_CALLS(SOFTGPU_TEST_LOAD)
#undef SOFTGPU_TEST_LOAD
  }
};

}  // namespace gcr::softgpu::test

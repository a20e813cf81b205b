// HIP in place of the CUDA driver. Most functions have the same binary interface and the same
// numbers of results, attributes and flags; the others are adapted here.
#include <dlfcn.h>

#include <cstdint>

#include "preload/hip/abi/hip_abi.h"
#include "tests/preload/driver_by_name.h"

namespace gcr::preload::test {
namespace {

void* g_library = nullptr;

/// A HIP function, with the type of the CUDA function that it replaces.
template <class Function>
Function* find(const char* symbol) {
  return reinterpret_cast<Function*>(::dlsym(g_library, symbol));
}

CUresult to_cuda(hipError_t result) { return static_cast<CUresult>(result); }

/// Frees the memory that the end of a CUDA context would free.
CUresult destroy_context(CUcontext context) {
  find<hipError_t(hipCtx_t)>("hipCtxSetCurrent")(reinterpret_cast<hipCtx_t>(context));
  return to_cuda(find<hipError_t()>("hipDeviceReset")());
}

CUresult import(CUmemGenericAllocationHandle* handle, void* file, CUmemAllocationHandleType type) {
  constexpr int kFirstByValue = 70'100'000;
  int version = 0;
  find<hipError_t(int*)>("hipRuntimeGetVersion")(&version);
  auto number = static_cast<int>(reinterpret_cast<std::intptr_t>(file));
  return to_cuda(find<hipError_t(void*, void*, hipMemAllocationHandleType)>(
      "hipMemImportFromShareableHandle")(handle, version >= kFirstByValue ? file : &number,
                                         static_cast<hipMemAllocationHandleType>(type)));
}

}  // namespace

bool Api::load_hip() {
  g_library = ::dlopen("libamdhip64.so.6", RTLD_NOW);
  if (g_library == nullptr) return false;
  cuCtxDestroy_v2 = destroy_context;
  cuMemImportFromShareableHandle = import;
#define GCR_HIP_CALL(cuda, hip) cuda = reinterpret_cast<decltype(cuda)>(::dlsym(g_library, #hip))
  GCR_HIP_CALL(hip_last_error, hipGetLastError);
  GCR_HIP_CALL(cuCtxCreate_v2, hipCtxCreate);
  GCR_HIP_CALL(cuCtxDisablePeerAccess, hipCtxDisablePeerAccess);
  GCR_HIP_CALL(cuCtxEnablePeerAccess, hipCtxEnablePeerAccess);
  GCR_HIP_CALL(cuCtxGetCurrent, hipCtxGetCurrent);
  GCR_HIP_CALL(cuCtxSetCurrent, hipCtxSetCurrent);
  GCR_HIP_CALL(cuCtxSynchronize, hipCtxSynchronize);
  GCR_HIP_CALL(cuDeviceGetCount, hipGetDeviceCount);
  GCR_HIP_CALL(cuDeviceGetDefaultMemPool, hipDeviceGetDefaultMemPool);
  GCR_HIP_CALL(cuDeviceGetMemPool, hipDeviceGetMemPool);
  GCR_HIP_CALL(cuDevicePrimaryCtxRelease_v2, hipDevicePrimaryCtxRelease);
  GCR_HIP_CALL(cuDevicePrimaryCtxRetain, hipDevicePrimaryCtxRetain);
  GCR_HIP_CALL(cuDeviceSetMemPool, hipDeviceSetMemPool);
  GCR_HIP_CALL(cuEventCreate, hipEventCreateWithFlags);
  GCR_HIP_CALL(cuEventDestroy_v2, hipEventDestroy);
  GCR_HIP_CALL(cuEventRecord, hipEventRecord);
  GCR_HIP_CALL(cuInit, hipInit);
  GCR_HIP_CALL(cuIpcCloseMemHandle, hipIpcCloseMemHandle);
  GCR_HIP_CALL(cuIpcGetMemHandle, hipIpcGetMemHandle);
  GCR_HIP_CALL(cuIpcOpenMemHandle_v2, hipIpcOpenMemHandle);
  GCR_HIP_CALL(cuLaunchHostFunc, hipLaunchHostFunc);
  GCR_HIP_CALL(cuMemAddressFree, hipMemAddressFree);
  GCR_HIP_CALL(cuMemAddressReserve, hipMemAddressReserve);
  GCR_HIP_CALL(cuMemAllocAsync, hipMallocAsync);
  GCR_HIP_CALL(cuMemAllocFromPoolAsync, hipMallocFromPoolAsync);
  GCR_HIP_CALL(cuMemAllocManaged, hipMallocManaged);
  GCR_HIP_CALL(cuMemAllocPitch_v2, hipMemAllocPitch);
  GCR_HIP_CALL(cuMemAlloc_v2, hipMalloc);
  GCR_HIP_CALL(cuMemCreate, hipMemCreate);
  GCR_HIP_CALL(cuMemExportToShareableHandle, hipMemExportToShareableHandle);
  GCR_HIP_CALL(cuMemFreeAsync, hipFreeAsync);
  GCR_HIP_CALL(cuMemFree_v2, hipFree);
  GCR_HIP_CALL(cuMemGetAddressRange_v2, hipMemGetAddressRange);
  GCR_HIP_CALL(cuMemGetAllocationPropertiesFromHandle, hipMemGetAllocationPropertiesFromHandle);
  GCR_HIP_CALL(cuMemGetInfo_v2, hipMemGetInfo);
  GCR_HIP_CALL(cuMemHostRegister_v2, hipHostRegister);
  GCR_HIP_CALL(cuMemHostUnregister, hipHostUnregister);
  GCR_HIP_CALL(cuMemMap, hipMemMap);
  GCR_HIP_CALL(cuMemPoolCreate, hipMemPoolCreate);
  GCR_HIP_CALL(cuMemPoolDestroy, hipMemPoolDestroy);
  GCR_HIP_CALL(cuMemPoolGetAttribute, hipMemPoolGetAttribute);
  GCR_HIP_CALL(cuMemPoolSetAccess, hipMemPoolSetAccess);
  GCR_HIP_CALL(cuMemPoolSetAttribute, hipMemPoolSetAttribute);
  GCR_HIP_CALL(cuMemPoolTrimTo, hipMemPoolTrimTo);
  GCR_HIP_CALL(cuMemRelease, hipMemRelease);
  GCR_HIP_CALL(cuMemRetainAllocationHandle, hipMemRetainAllocationHandle);
  GCR_HIP_CALL(cuMemSetAccess, hipMemSetAccess);
  GCR_HIP_CALL(cuMemUnmap, hipMemUnmap);
  GCR_HIP_CALL(cuMemcpyDtoD_v2, hipMemcpyDtoD);
  GCR_HIP_CALL(cuMemcpyDtoH_v2, hipMemcpyDtoH);
  GCR_HIP_CALL(cuMemcpyHtoD_v2, hipMemcpyHtoD);
  GCR_HIP_CALL(cuMemsetD8Async, hipMemsetD8Async);
  GCR_HIP_CALL(cuMemsetD8_v2, hipMemsetD8);
  GCR_HIP_CALL(cuPointerGetAttribute, hipPointerGetAttribute);
  GCR_HIP_CALL(cuPointerGetAttributes, hipDrvPointerGetAttributes);
  GCR_HIP_CALL(cuPointerSetAttribute, hipPointerSetAttribute);
  GCR_HIP_CALL(cuStreamBeginCapture_v2, hipStreamBeginCapture);
  GCR_HIP_CALL(cuStreamCreate, hipStreamCreateWithFlags);
  GCR_HIP_CALL(cuStreamDestroy_v2, hipStreamDestroy);
  GCR_HIP_CALL(cuStreamEndCapture, hipStreamEndCapture);
  GCR_HIP_CALL(cuStreamSynchronize, hipStreamSynchronize);
  GCR_HIP_CALL(cuStreamWaitEvent, hipStreamWaitEvent);
#undef GCR_HIP_CALL
  return true;
}

}  // namespace gcr::preload::test

// Functions whose signatures differ between HIP and CUDA.
#include "preload/hip/abi/hip_abi.h"
#include "tests/apps/hip_forms.h"
#include "tests/softgpu/calls.h"

namespace gcr::softgpu::test {
namespace {

#define SOFTGPU_TEST_HIP(X)                                                           \
  X(hipCtxGetCurrent, (hipCtx_t*))                                                    \
  X(hipCtxSetCurrent, (hipCtx_t))                                                     \
  X(hipCtxGetDevice, (int*))                                                          \
  X(hipSetDevice, (int))                                                              \
  X(hipDeviceReset, ())                                                               \
  X(hipDeviceGetP2PAttribute, (int*, hipDeviceP2PAttr, int, int))                     \
  X(hipMemcpyPeer, (void*, int, const void*, int, std::size_t))                       \
  X(hipMemcpyPeerAsync, (void*, int, const void*, int, std::size_t, hipStream_t))     \
  X(hipLibraryLoadData, (hipLibrary_t*, const void*, hipJitOption*, void**, unsigned, \
                         hipLibraryOption*, void**, unsigned))

struct {
#define SOFTGPU_TEST_MEMBER(symbol, parameters) hipError_t(*symbol) parameters = nullptr;
  SOFTGPU_TEST_HIP(SOFTGPU_TEST_MEMBER)
#undef SOFTGPU_TEST_MEMBER
} hip_api;

const apps::HipForms* hip_forms = nullptr;

/// The same numbers.
CUresult to_cuda(hipError_t result) { return static_cast<CUresult>(result); }

template <class Hip, class Cuda>
Hip as(Cuda* handle) {
  return reinterpret_cast<Hip>(handle);
}

void* pointer_to(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

int device_of(CUcontext context) {
  hipCtx_t before = nullptr;
  int device = -1;
  hip_api.hipCtxGetCurrent(&before);
  if (hip_api.hipCtxSetCurrent(as<hipCtx_t>(context)) != hipSuccess) return -1;
  hip_api.hipCtxGetDevice(&device);
  hip_api.hipCtxSetCurrent(before);
  return device;
}

/// Frees the memory that a CUDA context would free, and leaves the first GPU current.
CUresult destroy_context(CUcontext context) {
  const int device = device_of(context);
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  hip_api.hipSetDevice(device);
  return to_cuda(hip_api.hipDeviceReset());
}

CUresult p2p_attribute(int* value, CUdevice_P2PAttribute what, CUdevice device, CUdevice peer) {
  const auto hip = static_cast<hipDeviceP2PAttr>(what - CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK);
  return to_cuda(hip_api.hipDeviceGetP2PAttribute(value, hip, device, peer));
}

CUresult copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                   std::size_t bytes) {
  return to_cuda(hip_api.hipMemcpyPeer(pointer_to(to), device_of(to_context), pointer_to(from),
                                       device_of(from_context), bytes));
}

CUresult copy_peer_async(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                         CUcontext from_context, std::size_t bytes, CUstream stream) {
  return to_cuda(hip_api.hipMemcpyPeerAsync(pointer_to(to), device_of(to_context), pointer_to(from),
                                            device_of(from_context), bytes,
                                            as<hipStream_t>(stream)));
}

CUresult load_library(CUlibrary* library, const void* image, CUjit_option*, void**, unsigned,
                      CUlibraryOption*, void**, unsigned) {
  return to_cuda(hip_api.hipLibraryLoadData(reinterpret_cast<hipLibrary_t*>(library),
                                            hip_forms->code_of(image), nullptr, nullptr, 0, nullptr,
                                            nullptr, 0));
}

/// In place of functions that HIP lacks.
template <class... Arguments>
CUresult none(Arguments...) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

void Calls::adapt_hip(void* library) {
#define SOFTGPU_TEST_LOAD(symbol, parameters) \
  hip_api.symbol = reinterpret_cast<decltype(hip_api.symbol)>(::dlsym(library, #symbol));
  SOFTGPU_TEST_HIP(SOFTGPU_TEST_LOAD)
#undef SOFTGPU_TEST_LOAD
  hip_forms = &apps::hip_forms(library);
  cuCtxDestroy_v2 = destroy_context;
  cuDeviceGetAttribute = none;
  cuDeviceGetP2PAttribute = p2p_attribute;
  cuMemImportFromShareableHandle = hip_forms->import_memory;
  cuMemcpyPeer = copy_peer;
  cuMemcpyPeerAsync = copy_peer_async;
  cuStreamGetId = none;
  cuStreamGetCtx = none;
  cuModuleLoadData = hip_forms->load_module;
  cuLibraryLoadData = load_library;
  cuCheckpointProcessGetState = none;
  cuCheckpointProcessGetRestoreThreadId = none;
  cuCheckpointProcessLock = none;
  cuCheckpointProcessCheckpoint = none;
  cuCheckpointProcessRestore = none;
  cuCheckpointProcessUnlock = none;
}

}  // namespace gcr::softgpu::test

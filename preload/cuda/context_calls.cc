// Creation and destruction of contexts, and peer access between them.
#include "preload/cuda/face.h"
#include "preload/cuda/real_driver.h"
#include "preload/cuda/tracked.h"
#include "preload/memory/contexts.h"

namespace gcr::preload {
namespace {

CUresult created(CUresult result, const CUcontext* context, CUdevice device, bool primary) {
  if (result == CUDA_SUCCESS && context != nullptr) {
    note_created(cuda(), from_cuda(*context), device, primary);
  }
  return result;
}

CUresult destroyed(CUresult result, CUcontext context) {
  if (result == CUDA_SUCCESS) forget_context(cuda(), from_cuda(context));
  return result;
}

/// Records that a primary context may have been destroyed: by its last release, or by a reset.
CUresult primary_ended(CUresult result, CUdevice device, bool reset) {
  if (result == CUDA_SUCCESS) note_primary_ended(cuda(), device, reset);
  return result;
}

/// Returns the primary context of a context's device, and that device; null if the driver fails.
CUcontext primary_of(CUcontext context, CUdevice* device) {
  if (real::cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) return nullptr;
  CUcontext popped = nullptr, primary = nullptr;
  const CUresult told = real::cuCtxGetDevice(device);
  real::cuCtxPopCurrent_v2(&popped);
  if (told != CUDA_SUCCESS || real::cuDevicePrimaryCtxRetain(&primary, *device) != CUDA_SUCCESS) {
    return nullptr;
  }
  real::cuDevicePrimaryCtxRelease_v2(*device);  // the green context retains it
  return primary;
}

}  // namespace

namespace tracked {

CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx green) {
  const CUresult result = real::cuCtxFromGreenCtx(context, green);
  CUdevice device = 0;
  if (result != CUDA_SUCCESS) return result;
  // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the driver refuses null
  const CUcontext primary = primary_of(*context, &device);
  if (primary == nullptr) return result;
  note_created(cuda(), from_cuda(primary), device, true);
  note_green(cuda(), from_cuda(*context), from_cuda(primary));
  return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  CUcontext context = nullptr;
  CUdevice device = 0;
  const bool known = real::cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS &&
                     primary_of(context, &device) != nullptr;
  const CUresult result = real::cuGreenCtxDestroy(green);
  if (result != CUDA_SUCCESS || !known) return result;
  forget_green(cuda(), from_cuda(context));
  note_primary_ended(cuda(), device, false);  // this may have been its last reference
  return result;
}

CUresult cuCtxCreate(CUcontext* context, unsigned int flags, CUdevice device) {
  return created(real::cuCtxCreate(context, flags, device), context, device, false);
}

CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  return created(real::cuCtxCreate_v2(context, flags, device), context, device, false);
}

CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* params, int count,
                        unsigned int flags, CUdevice device) {
  return created(real::cuCtxCreate_v3(context, params, count, flags, device), context, device,
                 false);
}

CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* params, unsigned int flags,
                        CUdevice device) {
  return created(real::cuCtxCreate_v4(context, params, flags, device), context, device, false);
}

CUresult cuCtxDestroy(CUcontext context) { return destroyed(real::cuCtxDestroy(context), context); }

CUresult cuCtxDestroy_v2(CUcontext context) {
  return destroyed(real::cuCtxDestroy_v2(context), context);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return created(real::cuDevicePrimaryCtxRetain(context, device), context, device, true);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return primary_ended(real::cuDevicePrimaryCtxRelease(device), device, false);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return primary_ended(real::cuDevicePrimaryCtxRelease_v2(device), device, false);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  return primary_ended(real::cuDevicePrimaryCtxReset(device), device, true);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return primary_ended(real::cuDevicePrimaryCtxReset_v2(device), device, true);
}

CUresult cuCtxEnablePeerAccess(CUcontext owner, unsigned int flags) {
  const CUresult result = real::cuCtxEnablePeerAccess(owner, flags);
  if (result == CUDA_SUCCESS) enable_peer(cuda(), from_cuda(owner));
  return result;
}

CUresult cuCtxDisablePeerAccess(CUcontext owner) {
  const CUresult result = real::cuCtxDisablePeerAccess(owner);
  if (result == CUDA_SUCCESS) disable_peer(cuda(), from_cuda(owner));
  return result;
}

bool open_to_copies() {
  return !g_real_driver.are_calls_left_alone() && preload::open_to_copies(cuda());
}

}  // namespace tracked
}  // namespace gcr::preload

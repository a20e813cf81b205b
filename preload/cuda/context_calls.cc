// Creation and destruction of contexts, and peer access between them.
#include <algorithm>

#include "preload/cuda/backing.h"
#include "preload/cuda/contexts.h"
#include "preload/cuda/driver_calls.h"
#include "preload/cuda/tracked.h"

namespace gcr::preload {
namespace {

CUresult created(CUresult result, const CUcontext* context, CUdevice device, bool primary) {
  if (result != CUDA_SUCCESS || context == nullptr || device < 0 || device >= kMaxDevices) {
    return result;
  }
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  note_context(s, *context, device, primary);
  return result;
}

CUresult destroyed(CUresult result, CUcontext context) {
  if (result == CUDA_SUCCESS) forget_context(context);
  return result;
}

/// The known primary context of a device, null if there is none.
CUcontext primary_of(CUdevice device) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  for (const KnownContext& known : s.contexts) {
    if (known.primary && known.device == device) return known.context;
  }
  return nullptr;
}

/// A primary context dies with its last release, or with a reset.
CUresult released(CUresult result, CUdevice device) {
  if (result != CUDA_SUCCESS) return result;
  unsigned int flags = 0;
  int active = 1;
  if (real::cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || active != 0) {
    return result;
  }
  if (const CUcontext context = primary_of(device)) forget_context(context);
  return result;
}

void refresh_access(ProcessState& s, CUcontext owner) {
  for (auto& [address, mapping] : s.inventory.mappings()) {
    if (mapping.context == owner) apply_access(s, mapping);
  }
}

}  // namespace

namespace tracked {

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
  return released(real::cuDevicePrimaryCtxRelease(device), device);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return released(real::cuDevicePrimaryCtxRelease_v2(device), device);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  const CUresult result = real::cuDevicePrimaryCtxReset(device);
  const CUcontext context = primary_of(device);
  return context == nullptr ? result : destroyed(result, context);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  const CUresult result = real::cuDevicePrimaryCtxReset_v2(device);
  const CUcontext context = primary_of(device);
  return context == nullptr ? result : destroyed(result, context);
}

CUresult cuCtxEnablePeerAccess(CUcontext owner, unsigned int flags) {
  const CUresult result = real::cuCtxEnablePeerAccess(owner, flags);
  PeerAccess peer{nullptr, 0, owner};
  if (result != CUDA_SUCCESS || !current_context(&peer.accessor, &peer.accessor_device)) {
    return result;
  }
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  s.peers.push_back(peer);
  refresh_access(s, owner);
  return result;
}

CUresult cuCtxDisablePeerAccess(CUcontext owner) {
  const CUresult result = real::cuCtxDisablePeerAccess(owner);
  CUcontext accessor = nullptr;
  int device = 0;
  if (result != CUDA_SUCCESS || !current_context(&accessor, &device)) return result;
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  std::erase_if(s.peers, [&](const PeerAccess& peer) {
    return peer.accessor == accessor && peer.owner == owner;
  });
  refresh_access(s, owner);
  return result;
}

}  // namespace tracked
}  // namespace gcr::preload

// HIP's initialisation, devices and contexts, peer access between them, and captures.
#include "preload/hip/face.h"
#include "preload/hip/real_hip.h"
#include "preload/hip/tracked.h"
#include "preload/memory/backing.h"
#include "preload/memory/capture.h"
#include "preload/memory/contexts.h"
#include "preload/memory/pools.h"

namespace gcr::preload {
namespace {

/// Records a device reset, which frees everything that was allocated on the device.
hipError_t was_reset(hipError_t result, int device) {
  if (result != hipSuccess || device < 0 || device >= kMaxDevices) return result;
  forget_context(hip(), context_of(device));
  note_created(hip(), context_of(device), device, false);
  return result;
}

/// The device of a HIP context, which is a pointer in HIP; -1 if it is not a valid context.
int device_of(hipCtx_t context) {
  int count = 0;
  if (real::hipGetDeviceCount(&count) != hipSuccess) return -1;
  for (int device = 0; device < count; ++device) {
    hipCtx_t primary = nullptr;
    if (real::hipDevicePrimaryCtxRetain(&primary, device) != hipSuccess) continue;
    real::hipDevicePrimaryCtxRelease(device);
    if (primary == context) return device;
  }
  return -1;
}

hipError_t began(hipError_t result, hipStream_t stream, bool per_thread) {
  return to_hip(capture_began(hip(), from_hip(result), from_hip(stream), per_thread));
}

hipError_t ended(hipError_t result, hipStream_t stream, bool per_thread) {
  return to_hip(capture_ended(hip(), from_hip(result), from_hip(stream), per_thread));
}

}  // namespace

namespace hip_calls {

hipError_t hipInit(unsigned int flags) { return real::hipInit(flags); }

hipError_t hipDeviceReset() {
  int device = -1;
  if (real::hipGetDevice(&device) != hipSuccess) device = -1;
  return was_reset(real::hipDeviceReset(), device);
}

// A HIP context is only a name of a device: creating one allocates nothing, destroying one frees
// nothing.
hipError_t hipCtxCreate(hipCtx_t* ctx, unsigned int flags, hipDevice_t device) {
  return real::hipCtxCreate(ctx, flags, device);
}

hipError_t hipCtxDestroy(hipCtx_t ctx) { return real::hipCtxDestroy(ctx); }

hipError_t hipDevicePrimaryCtxRetain(hipCtx_t* pctx, hipDevice_t dev) {
  return real::hipDevicePrimaryCtxRetain(pctx, dev);
}

hipError_t hipDevicePrimaryCtxRelease(hipDevice_t dev) {
  return real::hipDevicePrimaryCtxRelease(dev);
}

hipError_t hipDevicePrimaryCtxReset(hipDevice_t dev) {
  return was_reset(real::hipDevicePrimaryCtxReset(dev), dev);
}

hipError_t hipDeviceEnablePeerAccess(int peer_device_id, unsigned int flags) {
  const hipError_t result = real::hipDeviceEnablePeerAccess(peer_device_id, flags);
  if (result == hipSuccess) enable_peer(hip(), context_of(peer_device_id));
  return result;
}

hipError_t hipDeviceDisablePeerAccess(int peer_device_id) {
  const hipError_t result = real::hipDeviceDisablePeerAccess(peer_device_id);
  if (result == hipSuccess) disable_peer(hip(), context_of(peer_device_id));
  return result;
}

hipError_t hipCtxEnablePeerAccess(hipCtx_t peer_ctx, unsigned int flags) {
  const hipError_t result = real::hipCtxEnablePeerAccess(peer_ctx, flags);
  const int device = result == hipSuccess ? device_of(peer_ctx) : -1;
  if (device >= 0) enable_peer(hip(), context_of(device));
  return result;
}

hipError_t hipCtxDisablePeerAccess(hipCtx_t peer_ctx) {
  const hipError_t result = real::hipCtxDisablePeerAccess(peer_ctx);
  const int device = result == hipSuccess ? device_of(peer_ctx) : -1;
  if (device >= 0) disable_peer(hip(), context_of(device));
  return result;
}

// Destroying a stream ends its capture, and its handle must not be queried afterwards.
hipError_t hipStreamDestroy(hipStream_t stream) {
  note_stream_end(hip(), from_hip(stream));
  forget_stream_number(stream);
  return ended(real::hipStreamDestroy(stream), stream, false);
}

hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode) {
  return began(real::hipStreamBeginCapture(stream, mode), stream, false);
}

hipError_t hipStreamBeginCapture_spt(hipStream_t stream, hipStreamCaptureMode mode) {
  return began(real::hipStreamBeginCapture_spt(stream, mode), stream, true);
}

hipError_t hipStreamBeginCaptureToGraph(hipStream_t stream, hipGraph_t graph,
                                        const hipGraphNode_t* dependencies,
                                        const hipGraphEdgeData* dependency_data,
                                        std::size_t num_dependencies, hipStreamCaptureMode mode) {
  return began(real::hipStreamBeginCaptureToGraph(stream, graph, dependencies, dependency_data,
                                                  num_dependencies, mode),
               stream, false);
}

hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph) {
  return ended(real::hipStreamEndCapture(stream, graph), stream, false);
}

hipError_t hipStreamEndCapture_spt(hipStream_t stream, hipGraph_t* graph) {
  return ended(real::hipStreamEndCapture_spt(stream, graph), stream, true);
}

}  // namespace hip_calls
}  // namespace gcr::preload

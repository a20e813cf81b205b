// Legacy IPC: see preload/memory/ipc.h.
#include "preload/memory/ipc.h"

#include "preload/cuda/face.h"
#include "preload/cuda/real_driver.h"
#include "preload/cuda/tracked.h"

namespace gcr::preload {
namespace {

static_assert(sizeof(CUipcMemHandle) == kIpcHandleBytes);

CUresult open_handle(CUdeviceptr* address, const CUipcMemHandle& handle, RealCall driver) {
  if (const auto done = open_ipc(cuda(), address, &handle)) return to_cuda(*done);
  const Result result = driver();
  if (result == Result::kSuccess) note_driver_ipc_opened(cuda());
  return to_cuda(result);
}

}  // namespace

namespace tracked {

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  if (const auto done = export_ipc(cuda(), handle, address)) return to_cuda(*done);
  const CUresult result = real::cuIpcGetMemHandle(handle, address);
  if (result == CUDA_SUCCESS) note_driver_ipc_exported(cuda());
  return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) {
  return open_handle(address, handle,
                     [&] { return real::cuIpcOpenMemHandle(address, handle, flags); });
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) {
  return open_handle(address, handle,
                     [&] { return real::cuIpcOpenMemHandle_v2(address, handle, flags); });
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  if (const auto done = close_ipc(cuda(), address)) return to_cuda(*done);
  const CUresult result = real::cuIpcCloseMemHandle(address);
  if (result == CUDA_SUCCESS) note_driver_ipc_closed(cuda());
  return result;
}

}  // namespace tracked
}  // namespace gcr::preload

// The application's own virtual memory management, and IPC: see preload/memory/vmm.h and ipc.h.
#include "preload/memory/vmm.h"

#include <vector>

#include "preload/cuda/face.h"
#include "preload/cuda/real_driver.h"
#include "preload/cuda/tracked.h"
#include "preload/memory/ipc.h"
#include "preload/memory/plain.h"

namespace gcr::preload {
namespace {

static_assert(sizeof(CUipcMemHandle) == kIpcHandleBytes);

/// Calls `function` for tiles of sparse arrays, with the driver's handles instead of ours. Arrays
/// cannot be unmapped and mapped again as ranges can, so such memory cannot be detached.
template <class Function>
CUresult map_arrays(CUarrayMapInfo* list, unsigned int count, Function real_call) {
  Runtime& r = cuda();
  const std::lock_guard lock(r.mutex);
  if (list == nullptr) return real_call(list);
  std::vector<CUarrayMapInfo> translated(list, list + count);
  for (CUarrayMapInfo& info : translated) {
    Physical* physical = r.inventory.from_handle(info.memHandle.memHandle);
    if (physical == nullptr) continue;
    info.memHandle.memHandle = physical->handle;
    physical->foreign = true;
  }
  return real_call(translated.data());
}

/// Calls `function` for memory that becomes part of a multicast object or an endpoint, with the
/// driver's handle instead of ours. Other processes can then reach it, so it cannot be detached.
template <class Function>
CUresult bind(CUmemGenericAllocationHandle memory, Function real_call) {
  Runtime& r = cuda();
  const std::lock_guard lock(r.mutex);
  Physical* physical = r.inventory.from_handle(memory);
  const CUresult result = real_call(physical == nullptr ? memory : physical->handle);
  if (result == CUDA_SUCCESS && physical != nullptr) physical->foreign = true;
  return result;
}

/// Notes memory, by its address, that the driver has bound to a multicast object.
CUresult bound(CUdeviceptr address, CUresult result) {
  if (result == CUDA_SUCCESS) note_foreign(cuda(), address);
  return result;
}

}  // namespace

namespace tracked {

CUresult cuMemAddressFree(CUdeviceptr address, std::size_t size_bytes) {
  return to_cuda(free_range(cuda(), address, size_bytes,
                            [&] { return real::cuMemAddressFree(address, size_bytes); }));
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size_bytes,
                     const CUmemAllocationProp* asked, unsigned long long flags) {
  const Asked wanted =
      handle == nullptr || asked == nullptr ? Asked() : from_cuda(*asked);  // or untracked
  return to_cuda(create_tracked(cuda(), handle, size_bytes, wanted, flags, [&] {
    return real::cuMemCreate(handle, size_bytes, asked, flags);
  }));
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return to_cuda(release_handle(cuda(), handle, [&] { return real::cuMemRelease(handle); }));
}

CUresult cuMemMap(CUdeviceptr address, std::size_t size_bytes, std::size_t offset_bytes,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return to_cuda(map_handle(cuda(), address, size_bytes, offset_bytes, handle, [&](Handle own) {
    return real::cuMemMap(address, size_bytes, offset_bytes, own, flags);
  }));
}

CUresult cuMemUnmap(CUdeviceptr address, std::size_t size_bytes) {
  return to_cuda(unmap_range(cuda(), address, size_bytes,
                             [&] { return real::cuMemUnmap(address, size_bytes); }));
}

CUresult cuMemSetAccess(CUdeviceptr address, std::size_t size_bytes,
                        const CUmemAccessDesc* accesses, std::size_t count) {
  return to_cuda(change_access(
      cuda(), address, size_bytes,
      [&] { return real::cuMemSetAccess(address, size_bytes, accesses, count); }, count,
      [&](std::size_t i) { return from_cuda(accesses[i]); }));
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  return to_cuda(export_handle(cuda(), handle, type, static_cast<int*>(shareable), [&] {
    return real::cuMemExportToShareableHandle(shareable, handle, type, flags);
  }));
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  const CUresult result = real::cuMemImportFromShareableHandle(handle, shareable, type);
  if (result != CUDA_SUCCESS) return result;
  const bool is_descriptor = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  *handle =
      imported(cuda(), *handle,
               is_descriptor ? static_cast<int>(reinterpret_cast<std::intptr_t>(shareable)) : -1);
  return result;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
  Asked asked;
  bool answered = false;
  const Result result = asked_of(cuda(), handle, properties == nullptr ? nullptr : &asked, [&] {
    answered = true;
    return real::cuMemGetAllocationPropertiesFromHandle(properties, handle);
  });
  if (result == Result::kSuccess && !answered) *properties = asked.kept<CUmemAllocationProp>();
  return to_cuda(result);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return to_cuda(retain_handle(cuda(), handle, reinterpret_cast<CUdeviceptr>(address),
                               [&] { return real::cuMemRetainAllocationHandle(handle, address); }));
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, std::size_t multicast_offset,
                            CUmemGenericAllocationHandle memory, std::size_t memory_offset,
                            std::size_t size_bytes, unsigned long long flags) {
  return bind(memory, [&](CUmemGenericAllocationHandle handle) {
    return real::cuMulticastBindMem(multicast, multicast_offset, handle, memory_offset, size_bytes,
                                    flags);
  });
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle multicast, CUdevice device,
                               std::size_t multicast_offset, CUmemGenericAllocationHandle memory,
                               std::size_t memory_offset, std::size_t size_bytes,
                               unsigned long long flags) {
  return bind(memory, [&](CUmemGenericAllocationHandle handle) {
    return real::cuMulticastBindMem_v2(multicast, device, multicast_offset, handle, memory_offset,
                                       size_bytes, flags);
  });
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, std::size_t multicast_offset,
                             CUdeviceptr address, std::size_t size_bytes,
                             unsigned long long flags) {
  return bound(address,
               real::cuMulticastBindAddr(multicast, multicast_offset, address, size_bytes, flags));
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle multicast, CUdevice device,
                                std::size_t multicast_offset, CUdeviceptr address,
                                std::size_t size_bytes, unsigned long long flags) {
  return bound(address, real::cuMulticastBindAddr_v2(multicast, device, multicast_offset, address,
                                                     size_bytes, flags));
}

CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId id, CUdevice device, cuuint64_t offset,
                                  CUmemGenericAllocationHandle memory, cuuint64_t memory_offset,
                                  cuuint64_t size_bytes, unsigned long long flags) {
  return bind(memory, [&](CUmemGenericAllocationHandle handle) {
    return real::cuLogicalEndpointBindMem(id, device, offset, handle, memory_offset, size_bytes,
                                          flags);
  });
}

CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId id, CUdevice device, cuuint64_t offset,
                                   void* address, cuuint64_t size_bytes, unsigned long long flags) {
  return bound(reinterpret_cast<CUdeviceptr>(address),
               real::cuLogicalEndpointBindAddr(id, device, offset, address, size_bytes, flags));
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo* list, unsigned int count, CUstream stream) {
  return map_arrays(list, count, [&](CUarrayMapInfo* translated) {
    return real::cuMemMapArrayAsync(translated, count, stream);
  });
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo* list, unsigned int count, CUstream stream) {
  return map_arrays(list, count, [&](CUarrayMapInfo* translated) {
    return real::cuMemMapArrayAsync_ptsz(translated, count, stream);
  });
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  return to_cuda(export_ipc(cuda(), handle, address,
                            [&] { return real::cuIpcGetMemHandle(handle, address); }));
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) {
  return to_cuda(open_ipc(cuda(), address, &handle,
                          [&] { return real::cuIpcOpenMemHandle(address, handle, flags); }));
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) {
  return to_cuda(open_ipc(cuda(), address, &handle,
                          [&] { return real::cuIpcOpenMemHandle_v2(address, handle, flags); }));
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  return to_cuda(close_ipc(cuda(), address, [&] { return real::cuIpcCloseMemHandle(address); }));
}

}  // namespace tracked
}  // namespace gcr::preload

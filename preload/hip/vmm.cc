// The application's own virtual memory management, and IPC: see preload/memory/vmm.h and ipc.h.
#include "preload/memory/vmm.h"

#include <optional>

#include "preload/hip/face.h"
#include "preload/hip/real_hip.h"
#include "preload/hip/tracked.h"
#include "preload/memory/ipc.h"
#include "preload/memory/plain.h"

namespace gcr::preload::hip_calls {

static_assert(sizeof(hipIpcMemHandle_t) == kIpcHandleBytes);

hipError_t hipMemAddressReserve(void** ptr, std::size_t size, std::size_t alignment, void* addr,
                                unsigned long long flags) {
  return real::hipMemAddressReserve(ptr, size, alignment, addr, flags);
}

hipError_t hipMemAddressFree(void* dev_ptr, std::size_t size) {
  return to_hip(free_range(hip(), address_of(dev_ptr), size,
                           [&] { return real::hipMemAddressFree(dev_ptr, size); }));
}

hipError_t hipMemCreate(hipMemGenericAllocationHandle_t* handle, std::size_t size,
                        const hipMemAllocationProp* prop, unsigned long long flags) {
  const Asked wanted = handle == nullptr || prop == nullptr ? Asked() : from_hip(*prop);
  Handle own = 0;
  const Result result = create_tracked(hip(), &own, size, wanted, flags, [&] {
    const hipError_t created = real::hipMemCreate(handle, size, prop, flags);
    if (created == hipSuccess) own = from_hip(*handle);
    return created;
  });
  // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): null is refused
  if (result == Result::kSuccess) *handle = to_hip(own);
  return to_hip(result);
}

hipError_t hipMemRelease(hipMemGenericAllocationHandle_t handle) {
  return to_hip(
      release_handle(hip(), from_hip(handle), [&] { return real::hipMemRelease(handle); }));
}

hipError_t hipMemMap(void* ptr, std::size_t size, std::size_t offset,
                     hipMemGenericAllocationHandle_t handle, unsigned long long flags) {
  return to_hip(map_handle(hip(), address_of(ptr), size, offset, from_hip(handle), [&](Handle own) {
    return real::hipMemMap(ptr, size, offset, to_hip(own), flags);
  }));
}

hipError_t hipMemUnmap(void* ptr, std::size_t size) {
  return to_hip(
      unmap_range(hip(), address_of(ptr), size, [&] { return real::hipMemUnmap(ptr, size); }));
}

// No HIP release supports this function, so its structure with handles is not declared here.
hipError_t hipMemMapArrayAsync(hipArrayMapInfo* map_info_list, unsigned int count,
                               hipStream_t stream) {
  return real::hipMemMapArrayAsync(map_info_list, count, stream);
}

hipError_t hipMemSetAccess(void* ptr, std::size_t size, const hipMemAccessDesc* desc,
                           std::size_t count) {
  return to_hip(change_access(
      hip(), address_of(ptr), size, [&] { return real::hipMemSetAccess(ptr, size, desc, count); },
      count, [&](std::size_t i) { return from_hip(desc[i]); }));
}

hipError_t hipMemGetAccess(unsigned long long* flags, const hipMemLocation* location, void* ptr) {
  return real::hipMemGetAccess(flags, location, ptr);
}

hipError_t hipMemExportToShareableHandle(void* shareable_handle,
                                         hipMemGenericAllocationHandle_t handle,
                                         hipMemAllocationHandleType handle_type,
                                         unsigned long long flags) {
  return to_hip(
      export_handle(hip(), from_hip(handle), handle_type, static_cast<int*>(shareable_handle), [&] {
        return real::hipMemExportToShareableHandle(shareable_handle, handle, handle_type, flags);
      }));
}

hipError_t hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t* handle, void* os_handle,
                                           hipMemAllocationHandleType sh_handle_type) {
  const hipError_t result =
      real::hipMemImportFromShareableHandle(handle, os_handle, sh_handle_type);
  if (result != hipSuccess) return result;
  int fd = -1;
  if (sh_handle_type == hipMemHandleTypePosixFileDescriptor) {
    fd = hip_release() >= kRelease7_1 ? static_cast<int>(reinterpret_cast<std::intptr_t>(os_handle))
                                      : *static_cast<const int*>(os_handle);
  }
  *handle = to_hip(imported(hip(), from_hip(*handle), fd));
  return result;
}

hipError_t hipMemGetAllocationPropertiesFromHandle(hipMemAllocationProp* prop,
                                                   hipMemGenericAllocationHandle_t handle) {
  Asked asked;
  bool answered = false;
  const Result result = asked_of(hip(), from_hip(handle), prop == nullptr ? nullptr : &asked, [&] {
    answered = true;
    return real::hipMemGetAllocationPropertiesFromHandle(prop, handle);
  });
  if (result == Result::kSuccess && !answered) *prop = asked.kept<hipMemAllocationProp>();
  return to_hip(result);
}

hipError_t hipMemRetainAllocationHandle(hipMemGenericAllocationHandle_t* handle, void* addr) {
  Handle own = 0;
  const Result result =
      retain_handle(hip(), handle == nullptr ? nullptr : &own, address_of(addr), [&] {
        const hipError_t retained = real::hipMemRetainAllocationHandle(handle, addr);
        if (retained == hipSuccess) own = from_hip(*handle);
        return from_hip(retained);
      });
  // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): null is refused
  if (result == Result::kSuccess) *handle = to_hip(own);
  return to_hip(result);
}

hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t* handle, void* dev_ptr) {
  return to_hip(export_ipc(hip(), handle, address_of(dev_ptr), [&] {
    // HIP accepts the application's own mappings, and then the kernel crashes (clr issue 265).
    if (view_of(hip(), address_of(dev_ptr)).has_value()) return hipErrorInvalidValue;
    return real::hipIpcGetMemHandle(handle, dev_ptr);
  }));
}

hipError_t hipIpcOpenMemHandle(void** dev_ptr, hipIpcMemHandle_t handle, unsigned int flags) {
  Address address = 0;
  const Result result = open_ipc(hip(), dev_ptr == nullptr ? nullptr : &address, &handle, [&] {
    const hipError_t opened = real::hipIpcOpenMemHandle(dev_ptr, handle, flags);
    if (opened == hipSuccess) address = address_of(*dev_ptr);
    return opened;
  });
  // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): null is refused
  if (result == Result::kSuccess) *dev_ptr = pointer_to(address);
  return to_hip(result);
}

hipError_t hipIpcCloseMemHandle(void* dev_ptr) {
  return to_hip(
      close_ipc(hip(), address_of(dev_ptr), [&] { return real::hipIpcCloseMemHandle(dev_ptr); }));
}

}  // namespace gcr::preload::hip_calls

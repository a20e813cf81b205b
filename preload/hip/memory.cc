// hipMalloc and related functions, registered host memory, and pointer queries: see
// preload/memory/plain.h.
#include <algorithm>
#include <optional>

#include "preload/hip/face.h"
#include "preload/hip/real_hip.h"
#include "preload/hip/tracked.h"
#include "preload/memory/backing.h"
#include "preload/memory/plain.h"

namespace gcr::preload {
namespace {

bool allocate(void** pointer, std::size_t size_bytes) {
  Address address = 0;
  if (pointer == nullptr || !allocate_plain(hip(), &address, size_bytes)) return false;
  *pointer = pointer_to(address);
  return true;
}

bool allocate_rows(void** pointer, std::size_t* pitch, std::size_t width, std::size_t height) {
  Address address = 0;
  if (pointer == nullptr || pitch == nullptr ||
      !allocate_pitched(hip(), &address, pitch, width, height)) {
    return false;
  }
  *pointer = pointer_to(address);
  return true;
}

void note(const void* pointer, std::size_t size_bytes, bool managed = false) {
  note_driver_allocation(hip(), address_of(pointer), size_bytes, managed);
}

/// Corrects HIP's answer in `data`. Returns true if the answer does not depend on HIP's.
bool correct(const View& view, hipPointer_attribute attribute, void* data) {
  if (attribute == HIP_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) {
    keep_requested_types(data, view);
    return false;
  }
  if (attribute == HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL && !view.on_host) {
    return put(data, view.device);
  }
  if (!view.plain) return false;
  switch (attribute) {
    case HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put(data, pointer_to(view.allocation.address));
    case HIP_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put(data, view.allocation.requested_bytes);
    case HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE:
      return put<unsigned char>(data, !view.pooled && view.allocation.ipc_opens == 0 ? 1 : 0);
    case HIP_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(data, to_hip(view.pool));
    case HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return put<unsigned char>(data, view.allocation.sync_memops ? 1 : 0);
    case HIP_POINTER_ATTRIBUTE_BUFFER_ID:  // 32 bits; HIP's own ids are small
      return put(data, 0x8000'0000u | static_cast<unsigned>(view.allocation.buffer_id));
    default:
      return false;
  }
}

/// The pointer with which to query HIP: `pointer`, or an unknown one if nothing is allocated there.
void* asked_pointer(const std::optional<View>& view, const void* pointer) {
  return view.has_value() && view->unused ? pointer_to(unknown_address())
                                          : const_cast<void*>(pointer);
}

bool is_known(const std::optional<View>& view) { return view.has_value() && !view->unused; }

}  // namespace

namespace hip_calls {

void __hipRegisterManagedVar(void* hip_module, void** pointer, void* init_value, const char* name,
                             std::size_t size, unsigned int align) {
  real::__hipRegisterManagedVar(hip_module, pointer, init_value, name, size, align);
  note(pointer, size, true);
}

hipError_t hipMalloc(void** ptr, std::size_t size) {
  if (allocate(ptr, size)) return hipSuccess;
  const hipError_t result = real::hipMalloc(ptr, size);
  if (result == hipSuccess && size != 0) note(*ptr, size);
  return result;
}

hipError_t hipExtMallocWithFlags(void** ptr, std::size_t size_bytes, unsigned int flags) {
  if (flags == hipDeviceMallocDefault && allocate(ptr, size_bytes)) return hipSuccess;
  const hipError_t result = real::hipExtMallocWithFlags(ptr, size_bytes, flags);
  if (result == hipSuccess && size_bytes != 0) note(*ptr, size_bytes);
  return result;
}

hipError_t hipMallocPitch(void** ptr, std::size_t* pitch, std::size_t width, std::size_t height) {
  if (allocate_rows(ptr, pitch, width, height)) return hipSuccess;
  const hipError_t result = real::hipMallocPitch(ptr, pitch, width, height);
  if (result == hipSuccess && *ptr != nullptr) note(*ptr, *pitch * height);
  return result;
}

hipError_t hipMemAllocPitch(hipDeviceptr_t* dptr, std::size_t* pitch, std::size_t width_in_bytes,
                            std::size_t height, unsigned int element_size_bytes) {
  const bool known_element =
      element_size_bytes == 4 || element_size_bytes == 8 || element_size_bytes == 16;
  if (known_element && allocate_rows(dptr, pitch, width_in_bytes, height)) return hipSuccess;
  const hipError_t result =
      real::hipMemAllocPitch(dptr, pitch, width_in_bytes, height, element_size_bytes);
  if (result == hipSuccess && *dptr != nullptr) note(*dptr, *pitch * height);
  return result;
}

hipError_t hipMalloc3D(hipPitchedPtr* pitched_dev_ptr, hipExtent extent) {
  std::size_t rows = 0;
  if (pitched_dev_ptr != nullptr && !__builtin_mul_overflow(extent.height, extent.depth, &rows) &&
      allocate_rows(&pitched_dev_ptr->ptr, &pitched_dev_ptr->pitch, extent.width, rows)) {
    pitched_dev_ptr->xsize = extent.width;
    pitched_dev_ptr->ysize = extent.height;
    return hipSuccess;
  }
  const hipError_t result = real::hipMalloc3D(pitched_dev_ptr, extent);
  if (result == hipSuccess && pitched_dev_ptr != nullptr && pitched_dev_ptr->ptr != nullptr) {
    note(pitched_dev_ptr->ptr, pitched_dev_ptr->pitch * rows);
  }
  return result;
}

hipError_t hipMallocManaged(void** dev_ptr, std::size_t size, unsigned int flags) {
  const hipError_t result = real::hipMallocManaged(dev_ptr, size, flags);
  if (result == hipSuccess && size != 0) note(*dev_ptr, size, true);
  return result;
}

hipError_t hipFree(void* ptr) {
  if (const auto done = free_plain(hip(), address_of(ptr))) return to_hip(*done);
  return real::hipFree(ptr);
}

hipError_t hipMemGetAddressRange(hipDeviceptr_t* pbase, std::size_t* psize, hipDeviceptr_t dptr) {
  const auto range = plain_range(hip(), address_of(dptr));
  if (!range.has_value()) return real::hipMemGetAddressRange(pbase, psize, dptr);
  if (range->result != Result::kSuccess) {  // lets HIP return its own error
    return real::hipMemGetAddressRange(pbase, psize, pointer_to(unknown_address()));
  }
  if (pbase != nullptr) *pbase = pointer_to(range->address);
  if (psize != nullptr) *psize = range->size_bytes;
  return hipSuccess;
}

hipError_t hipMemPtrGetInfo(void* ptr, std::size_t* size) {
  const auto range = plain_range(hip(), address_of(ptr));
  if (!range.has_value()) return real::hipMemPtrGetInfo(ptr, size);
  if (range->result != Result::kSuccess || size == nullptr || range->address != address_of(ptr)) {
    return hipErrorInvalidValue;
  }
  *size = range->size_bytes;
  return hipSuccess;
}

hipError_t hipPointerGetAttribute(void* data, hipPointer_attribute attribute, hipDeviceptr_t ptr) {
  const std::optional<View> view = view_of(hip(), address_of(ptr));
  const hipError_t result = real::hipPointerGetAttribute(data, attribute, asked_pointer(view, ptr));
  if (!is_known(view) || data == nullptr) return result;
  if (result != hipSuccess && attribute == HIP_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) {
    return result;
  }
  return correct(*view, attribute, data) ? hipSuccess : result;
}

hipError_t hipPointerGetAttributes(hipPointerAttribute_t* attributes, const void* ptr) {
  const std::optional<View> view = view_of(hip(), address_of(ptr));
  const hipError_t result = real::hipPointerGetAttributes(attributes, asked_pointer(view, ptr));
  if (result == hipSuccess || !is_known(view) || !view->plain || attributes == nullptr) {
    return result;
  }
  // This release does not support mapped memory in this function.
  *attributes = {};
  attributes->memoryType = static_cast<hipMemoryType>(
      hip_release() >= kRelease6_0 ? static_cast<int>(hipMemoryTypeDeviceR0600)
                                   : static_cast<int>(hipMemoryTypeDevice));
  attributes->device = view->device;
  attributes->devicePointer = const_cast<void*>(ptr);
  return hipSuccess;
}

hipError_t hipDrvPointerGetAttributes(unsigned int num_attributes, hipPointer_attribute* attributes,
                                      void** data, hipDeviceptr_t ptr) {
  const std::optional<View> view = view_of(hip(), address_of(ptr));
  const hipError_t result =
      real::hipDrvPointerGetAttributes(num_attributes, attributes, data, asked_pointer(view, ptr));
  if (result != hipSuccess || !is_known(view) || attributes == nullptr || data == nullptr) {
    return result;
  }
  for (unsigned int i = 0; i < num_attributes; ++i) {
    if (data[i] != nullptr) correct(*view, attributes[i], data[i]);
  }
  return result;
}

hipError_t hipPointerSetAttribute(const void* value, hipPointer_attribute attribute,
                                  hipDeviceptr_t ptr) {
  const hipError_t result = real::hipPointerSetAttribute(value, attribute, ptr);
  if (attribute != HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS || value == nullptr) return result;
  if (!view_of(hip(), address_of(ptr)).value_or(View()).plain) return result;
  // The driver may refuse it for mapped memory. The application reads back the value that it set.
  set_sync_memops(hip(), address_of(ptr), *static_cast<const unsigned char*>(value) != 0);
  return hipSuccess;
}

hipError_t hipMemGetHandleForAddressRange(void* handle, hipDeviceptr_t dptr, std::size_t size,
                                          hipMemRangeHandleType handle_type,
                                          unsigned long long flags) {
  const hipError_t result =
      real::hipMemGetHandleForAddressRange(handle, dptr, size, handle_type, flags);
  if (result == hipSuccess) note_foreign(hip(), address_of(dptr));
  return result;
}

hipError_t hipHostRegister(void* host_ptr, std::size_t size_bytes, unsigned int flags) {
  return to_hip(register_host_memory(hip(), host_ptr, size_bytes, [&] {
    return real::hipHostRegister(host_ptr, size_bytes, flags);
  }));
}

hipError_t hipHostUnregister(void* host_ptr) {
  return to_hip(
      unregister_host_memory(hip(), host_ptr, [&] { return real::hipHostUnregister(host_ptr); }));
}

}  // namespace hip_calls
}  // namespace gcr::preload

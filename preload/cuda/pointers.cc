// Pointer queries. For backed memory they answer as for the driver's own allocations; for memory
// that the application mapped itself, they answer with the properties that it requested.
#include <optional>

#include "preload/cuda/face.h"
#include "preload/cuda/real_driver.h"
#include "preload/cuda/tracked.h"
#include "preload/memory/plain.h"

namespace gcr::preload {
namespace {

/// Whether a plain allocation has the attribute although the driver refuses it for mapped memory.
bool answers_without_driver(CUpointer_attribute attribute) {
  return attribute != CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES &&
         attribute != CU_POINTER_ATTRIBUTE_P2P_TOKENS;
}

/// Corrects the driver's answer in `data`. Returns true if the answer does not depend on the
/// driver's.
bool override_answer(const View& view, CUpointer_attribute attribute, CUdeviceptr address,
                     void* data) {
  if (attribute == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) {
    keep_requested_types(data, view);
    return false;
  }
  // After a restore on other GPUs, the driver reports the device of imported memory with the
  // ordinals of a process that was started on that host.
  if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL && !view.on_host) {
    return put(data, view.device);
  }
  if (!view.plain) return false;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put(data, to_cuda(view.context));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put(data, view.allocation.address);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return put(data, view.mapping);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put(data, view.allocation.requested_bytes);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return put(data, view.mapped_bytes);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put<unsigned char>(data, !view.pooled && view.allocation.ipc_opens == 0 ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(data, to_cuda(view.pool));
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return put<unsigned char>(data, view.allocation.sync_memops ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      // A query of the tokens makes the driver enable synchronous operations.
      set_sync_memops(cuda(), address, true);
      return false;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put(data, view.allocation.buffer_id);
    default:
      return false;
  }
}

}  // namespace

namespace tracked {

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  const std::optional<View> view = view_of(cuda(), address);
  if (view.has_value() && view->unused) address = unknown_address();
  const CUresult result = real::cuPointerGetAttribute(data, attribute, address);
  if (!view.has_value() || view->unused || data == nullptr) return result;
  if (result != CUDA_SUCCESS && !answers_without_driver(attribute)) return result;
  return override_answer(*view, attribute, address, data) ? CUDA_SUCCESS : result;
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr address) {
  const std::optional<View> view = view_of(cuda(), address);
  if (view.has_value() && view->unused) address = unknown_address();
  const CUresult result = real::cuPointerGetAttributes(count, attributes, data, address);
  if (result != CUDA_SUCCESS || attributes == nullptr || data == nullptr) return result;
  if (!view.has_value() || view->unused) return result;
  for (unsigned int i = 0; i < count; ++i) {
    if (data[i] != nullptr) override_answer(*view, attributes[i], address, data[i]);
  }
  return result;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                               CUdeviceptr address) {
  const CUresult result = real::cuPointerSetAttribute(value, attribute, address);
  if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || value == nullptr) return result;
  if (!view_of(cuda(), address).value_or(View()).plain) return result;
  // Mapped memory always has synchronous operations and refuses to change them; plain memory has
  // them only on request. The application reads back the value that it set.
  set_sync_memops(cuda(), address, *static_cast<const unsigned char*>(value) != 0);
  return CUDA_SUCCESS;
}

}  // namespace tracked
}  // namespace gcr::preload

// Pointer queries on backed memory answer as they would for the driver's own; on memory that the
// application mapped itself, they answer with what it had asked for.
#include <optional>

#include "preload/cuda/driver_calls.h"
#include "preload/cuda/face.h"
#include "preload/cuda/tracked.h"
#include "preload/memory/plain.h"

namespace gcr::preload {
namespace {

// The widths of the boolean and bit-mask answers are not documented: only their lowest byte, which
// holds every value that there is, gets changed.
void clear_bits(void* data, unsigned int bits) {
  auto* lowest = static_cast<unsigned char*>(data);
  *lowest = static_cast<unsigned char>(*lowest & ~bits);
}

template <class T>
bool put(void* data, T value) {
  *static_cast<T*>(data) = value;
  return true;
}

/// Attributes that a plain allocation has even where the driver refuses them on mapped memory.
bool answers_without_driver(CUpointer_attribute attribute) {
  return attribute != CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES &&
         attribute != CU_POINTER_ATTRIBUTE_P2P_TOKENS;
}

/// Corrects the driver's answer in `data`. True if the answer does not need the driver at all.
bool override_answer(const View& view, CUpointer_attribute attribute, CUdeviceptr address,
                     void* data) {
  if (attribute == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) {
    clear_bits(data, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR & ~view.handle_types);
    return false;
  }
  // After a restore onto other GPUs the driver tells where imported memory is as a process would
  // count that started there.
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
      // A query of the tokens makes the driver turn synchronous operations on.
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
  // Mapped memory has synchronous operations always and refuses to have them set; plain memory has
  // them only when asked. The application gets the value that it set.
  set_sync_memops(cuda(), address, *static_cast<const unsigned char*>(value) != 0);
  return CUDA_SUCCESS;
}

}  // namespace tracked
}  // namespace gcr::preload

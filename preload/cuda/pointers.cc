// Pointer queries on backed memory answer as they would for a plain cuMemAlloc; on memory that the
// application mapped itself, they answer with what it had asked for.
#include <optional>

#include "preload/cuda/driver_calls.h"
#include "preload/cuda/process_state.h"
#include "preload/cuda/tracked.h"

namespace gcr::preload {
namespace {

/// What the library knows of one address, copied so that the mutex need not be held.
struct View {
  bool plain = false;
  CUdeviceptr base = 0;
  std::size_t requested_bytes = 0;
  std::size_t mapped_bytes = 0;
  CUcontext context = nullptr;
  bool sync_memops = false;
  unsigned long long buffer_id = 0;
  unsigned int handle_types = 0;
};

std::optional<View> view_of(CUdeviceptr address) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  if (const Mapping* mapping = s.inventory.find_plain(address)) {
    const PlainView& plain = *mapping->plain;
    return View{.plain = true,
                .base = mapping->address,
                .requested_bytes = plain.requested_bytes,
                .mapped_bytes = mapping->size_bytes,
                .context = plain.context,
                .sync_memops = plain.sync_memops,
                .buffer_id = plain.buffer_id,
                .handle_types = 0};
  }
  const Mapping* mapping = s.inventory.find_mapping(address);
  if (mapping == nullptr || mapping->plain != nullptr) return std::nullopt;
  View view;
  view.handle_types = mapping->physical->asked.requestedHandleTypes;
  return view;
}

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

/// The first answer of the driver stays the answer, across migrations too.
unsigned long long keep_buffer_id(CUdeviceptr address, unsigned long long answer) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  const Mapping* mapping = s.inventory.find_plain(address);
  if (mapping == nullptr) return answer;
  if (mapping->plain->buffer_id == 0) mapping->plain->buffer_id = answer;
  return mapping->plain->buffer_id;
}

void set_sync_memops(CUdeviceptr address, bool value) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  if (const Mapping* mapping = s.inventory.find_plain(address)) mapping->plain->sync_memops = value;
}

/// Attributes that a plain allocation has even where the driver refuses them on mapped memory.
bool answers_without_driver(CUpointer_attribute attribute) {
  return attribute != CU_POINTER_ATTRIBUTE_BUFFER_ID &&
         attribute != CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES &&
         attribute != CU_POINTER_ATTRIBUTE_P2P_TOKENS;
}

/// Corrects the driver's answer in `data`. True if the answer does not need the driver at all.
bool override_answer(const View& view, CUpointer_attribute attribute, CUdeviceptr address,
                     void* data) {
  if (attribute == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) {
    clear_bits(data, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR & ~view.handle_types);
    return false;
  }
  if (!view.plain) return false;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put(data, view.context);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return put(data, view.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put(data, view.requested_bytes);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return put(data, view.mapped_bytes);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put<unsigned char>(data, 1);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return put<unsigned char>(data, view.sync_memops ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      // A query of the tokens makes the driver turn synchronous operations on.
      set_sync_memops(address, true);
      return false;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      if (view.buffer_id != 0) return put(data, view.buffer_id);
      put(data, keep_buffer_id(address, *static_cast<unsigned long long*>(data)));
      return false;
    default:
      return false;
  }
}

}  // namespace

namespace tracked {

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  const std::optional<View> view = view_of(address);
  const CUresult result = real::cuPointerGetAttribute(data, attribute, address);
  if (!view.has_value() || data == nullptr) return result;
  if (result != CUDA_SUCCESS && !answers_without_driver(attribute)) return result;
  return override_answer(*view, attribute, address, data) ? CUDA_SUCCESS : result;
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr address) {
  const CUresult result = real::cuPointerGetAttributes(count, attributes, data, address);
  if (result != CUDA_SUCCESS || attributes == nullptr || data == nullptr) return result;
  const std::optional<View> view = view_of(address);
  if (!view.has_value()) return result;
  for (unsigned int i = 0; i < count; ++i) {
    if (data[i] != nullptr) override_answer(*view, attributes[i], address, data[i]);
  }
  return result;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                               CUdeviceptr address) {
  const CUresult result = real::cuPointerSetAttribute(value, attribute, address);
  if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || value == nullptr) return result;
  if (!view_of(address).value_or(View()).plain) return result;
  // Mapped memory has synchronous operations always and refuses to have them set; plain memory has
  // them only when asked. The application gets the value that it set.
  set_sync_memops(address, *static_cast<const unsigned char*>(value) != 0);
  return CUDA_SUCCESS;
}

}  // namespace tracked
}  // namespace gcr::preload

// cuMemAlloc and its kin, backed wherever that is possible (decision 1).
#include <cstdint>
#include <optional>

#include "preload/cuda/backing.h"
#include "preload/cuda/capture.h"
#include "preload/cuda/driver_calls.h"
#include "preload/cuda/pools.h"
#include "preload/cuda/tracked.h"

namespace gcr::preload {
namespace {

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// What the driver rounds pitches up to on the current device: the pitch that it gives a row of one
/// element. Asked once per device; 0 if that cannot be done now.
std::size_t pitch_alignment() {
  CUcontext context = nullptr;
  int device = 0;
  if (!current_context(&context, &device)) return 0;
  ProcessState& s = state();
  {
    const std::lock_guard lock(s.mutex);
    if (s.devices[device].pitch_alignment_bytes != 0) {
      return s.devices[device].pitch_alignment_bytes;
    }
    if (any_capture(s)) return 0;
  }
  CUdeviceptr row = 0;
  std::size_t pitch_bytes = 0;
  if (real::cuMemAllocPitch_v2(&row, &pitch_bytes, 4, 1, 4) != CUDA_SUCCESS) return 0;
  real::cuMemFree_v2(row);
  const std::lock_guard lock(s.mutex);
  s.devices[device].pitch_alignment_bytes = pitch_bytes;
  return pitch_bytes;
}

bool allocate_backed_pitch(CUdeviceptr* address, std::size_t* pitch_bytes, std::size_t width_bytes,
                           std::size_t height, unsigned int element_bytes) {
  const bool known_element = element_bytes == 4 || element_bytes == 8 || element_bytes == 16;
  constexpr std::size_t kWidest = std::size_t{1} << 31;
  if (!known_element || width_bytes == 0 || width_bytes >= kWidest || height == 0) return false;
  if (height > SIZE_MAX / (2 * kWidest)) return false;
  const std::size_t alignment_bytes = pitch_alignment();
  if (alignment_bytes == 0) return false;
  const std::size_t pitch = round_up(width_bytes, alignment_bytes);
  if (!allocate_backed(pitch * height, address)) return false;
  *pitch_bytes = pitch;
  return true;
}

enum class Ownership { kDriver, kRefused, kDeferred, kTaken };

/// Takes a backed allocation out of the inventory, for the caller to release or, during a capture,
/// for later.
Ownership take_for_free(CUdeviceptr address, Freed* taken) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  Mapping* mapping = s.inventory.find_mapping(address);
  if (mapping == nullptr || !mapping->is_of_plains()) return Ownership::kDriver;
  if (!is_backed(s, *mapping, address)) return Ownership::kRefused;
  *taken = take_plain(s, *mapping, address);
  if (!any_capture(s)) return Ownership::kTaken;
  s.deferred_frees.push_back({std::move(*taken), nullptr});
  return Ownership::kDeferred;
}

CUresult free_in_driver(CUdeviceptr address) {
  ProcessState& s = state();
  {
    const std::lock_guard lock(s.mutex);
    s.inventory.remove_untracked(address);
  }
  return real::cuMemFree_v2(address);
}

}  // namespace

namespace tracked {

CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t size_bytes) {
  if (address != nullptr) {
    flush_deferred_frees();
    if (allocate_backed(size_bytes, address)) return CUDA_SUCCESS;
  }
  const CUresult result = real::cuMemAlloc_v2(address, size_bytes);
  // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the driver refuses null
  if (result == CUDA_SUCCESS) note_driver_allocation(*address, size_bytes, false);
  return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* address, std::size_t* pitch_bytes, std::size_t width_bytes,
                            std::size_t height, unsigned int element_bytes) {
  if (address != nullptr && pitch_bytes != nullptr) {
    flush_deferred_frees();
    if (allocate_backed_pitch(address, pitch_bytes, width_bytes, height, element_bytes)) {
      return CUDA_SUCCESS;
    }
  }
  const CUresult result =
      real::cuMemAllocPitch_v2(address, pitch_bytes, width_bytes, height, element_bytes);
  // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the driver refuses null
  if (result == CUDA_SUCCESS) note_driver_allocation(*address, *pitch_bytes * height, false);
  return result;
}

CUresult cuMemAllocManaged(CUdeviceptr* address, std::size_t size_bytes, unsigned int flags) {
  const CUresult result = real::cuMemAllocManaged(address, size_bytes, flags);
  if (result == CUDA_SUCCESS) note_driver_allocation(*address, size_bytes, true);
  return result;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  if (const std::optional<CUresult> of_pool = free_unused(address)) return *of_pool;
  Freed freed;
  switch (take_for_free(address, &freed)) {
    case Ownership::kDriver:
      return free_in_driver(address);
    case Ownership::kRefused:
      return CUDA_ERROR_INVALID_VALUE;
    case Ownership::kDeferred:
      return CUDA_SUCCESS;
    case Ownership::kTaken:
      break;
  }
  const CUresult result = synchronize(freed.context);
  release(freed);
  flush_deferred_frees();
  return result;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size_bytes, CUdeviceptr address) {
  ProcessState& s = state();
  CUcontext context = nullptr;
  int device = 0;
  if (current_context(&context, &device)) {  // else the driver refuses
    const std::lock_guard lock(s.mutex);
    if (const Plain* plain = s.inventory.find_plain(address)) {
      if (base != nullptr) *base = plain->address;
      if (size_bytes != nullptr) *size_bytes = plain->requested_bytes;
      return CUDA_SUCCESS;
    }
    const Mapping* mapping = s.inventory.find_mapping(address);
    if (mapping != nullptr && mapping->is_of_plains()) return CUDA_ERROR_NOT_FOUND;
  }
  flush_deferred_frees();
  return real::cuMemGetAddressRange_v2(base, size_bytes, address);
}

CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, std::size_t size_bytes,
                                       CUmemRangeHandleType type, unsigned long long flags) {
  const CUresult result =
      real::cuMemGetHandleForAddressRange(handle, address, size_bytes, type, flags);
  if (result != CUDA_SUCCESS) return result;
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  if (Mapping* mapping = s.inventory.find_mapping(address)) mapping->physical->foreign = true;
  return result;
}

}  // namespace tracked
}  // namespace gcr::preload

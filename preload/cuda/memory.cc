// cuMemAlloc and related functions, variables of modules, and registered host memory: see
// preload/memory/plain.h.
#include "preload/cuda/face.h"
#include "preload/cuda/real_driver.h"
#include "preload/cuda/tracked.h"
#include "preload/memory/backing.h"
#include "preload/memory/plain.h"

namespace gcr::preload::tracked {
namespace {

/// Notes the variable of a module, in case it is managed; `address` is null if the caller asked
/// only for the size.
CUresult noted(CUresult result, const CUdeviceptr* address) {
  if (result == CUDA_SUCCESS && address != nullptr) note_variable(cuda(), *address);
  return result;
}

}  // namespace

CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t size_bytes) {
  if (address != nullptr && allocate_plain(cuda(), address, size_bytes)) return CUDA_SUCCESS;
  const CUresult result = real::cuMemAlloc_v2(address, size_bytes);
  // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the driver refuses null
  if (result == CUDA_SUCCESS) note_driver_allocation(cuda(), *address, size_bytes, false);
  return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* address, std::size_t* pitch_bytes, std::size_t width_bytes,
                            std::size_t height, unsigned int element_bytes) {
  const bool known_element = element_bytes == 4 || element_bytes == 8 || element_bytes == 16;
  if (address != nullptr && pitch_bytes != nullptr && known_element &&
      allocate_pitched(cuda(), address, pitch_bytes, width_bytes, height)) {
    return CUDA_SUCCESS;
  }
  const CUresult result =
      real::cuMemAllocPitch_v2(address, pitch_bytes, width_bytes, height, element_bytes);
  if (result == CUDA_SUCCESS) {
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the driver refuses null
    note_driver_allocation(cuda(), *address, *pitch_bytes * height, false);
  }
  return result;
}

CUresult cuMemAllocManaged(CUdeviceptr* address, std::size_t size_bytes, unsigned int flags) {
  const CUresult result = real::cuMemAllocManaged(address, size_bytes, flags);
  if (result == CUDA_SUCCESS) note_driver_allocation(cuda(), *address, size_bytes, true);
  return result;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  if (const auto done = free_plain(cuda(), address)) return to_cuda(*done);
  return real::cuMemFree_v2(address);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size_bytes, CUdeviceptr address) {
  const auto range = plain_range(cuda(), address);
  if (!range.has_value()) return real::cuMemGetAddressRange_v2(base, size_bytes, address);
  if (range->result != Result::kSuccess) return to_cuda(range->result);
  if (!range->in_reach) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = range->address;
  if (size_bytes != nullptr) *size_bytes = range->size_bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, std::size_t size_bytes,
                                       CUmemRangeHandleType type, unsigned long long flags) {
  const CUresult result =
      real::cuMemGetHandleForAddressRange(handle, address, size_bytes, type, flags);
  if (result == CUDA_SUCCESS) note_foreign(cuda(), address);
  return result;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, std::size_t* size_bytes, CUmodule module,
                              const char* name) {
  return noted(real::cuModuleGetGlobal_v2(address, size_bytes, module, name), address);
}

CUresult cuLibraryGetGlobal(CUdeviceptr* address, std::size_t* size_bytes, CUlibrary library,
                            const char* name) {
  return noted(real::cuLibraryGetGlobal(address, size_bytes, library, name), address);
}

CUresult cuLibraryGetManaged(CUdeviceptr* address, std::size_t* size_bytes, CUlibrary library,
                             const char* name) {
  return noted(real::cuLibraryGetManaged(address, size_bytes, library, name), address);
}

CUresult cuMemHostRegister(void* at, std::size_t size_bytes, unsigned int flags) {
  return to_cuda(register_host_memory(
      cuda(), at, size_bytes, [&] { return real::cuMemHostRegister(at, size_bytes, flags); }));
}

CUresult cuMemHostRegister_v2(void* at, std::size_t size_bytes, unsigned int flags) {
  return to_cuda(register_host_memory(
      cuda(), at, size_bytes, [&] { return real::cuMemHostRegister_v2(at, size_bytes, flags); }));
}

CUresult cuMemHostUnregister(void* at) {
  return to_cuda(unregister_host_memory(cuda(), at, [&] { return real::cuMemHostUnregister(at); }));
}

bounds::Range range_around(Address address) {
  if (!g_real_driver.are_calls_left_alone()) return preload::range_around(cuda(), address);
  return {bounds::current_tag(), 0, bounds::kUnlimited, bounds::kUnlimited};
}

}  // namespace gcr::preload::tracked

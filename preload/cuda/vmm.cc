// The application's own virtual memory management. It holds values of the library instead of
// the driver's handles, so that the physical memory behind them can be released and replaced.
// Memory that cannot be passed by a descriptor (fabric handles, tile pools, multicast objects)
// keeps the driver's handle and is not tracked.
#include <fcntl.h>

#include <new>

#include "preload/cuda/backing.h"
#include "preload/cuda/driver_calls.h"
#include "preload/cuda/process_state.h"
#include "preload/cuda/room.h"
#include "preload/cuda/tracked.h"
#include "preload/descriptors.h"
#include "src/base/unique_fd.h"

namespace gcr::preload {
namespace {

bool is_host_memory(const CUmemAllocationProp& asked) {
  return asked.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

bool can_track(const CUmemAllocationProp& asked) {
  constexpr unsigned int kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const bool on_device =
      asked.location.type == CU_MEM_LOCATION_TYPE_DEVICE && asked.location.id < kMaxDevices;
  return asked.type == CU_MEM_ALLOCATION_TYPE_PINNED && (on_device || is_host_memory(asked)) &&
         asked.location.id >= 0 &&
         (static_cast<unsigned int>(asked.requestedHandleTypes) & ~kFd) == 0 &&
         (asked.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL) == 0;
}

/// The mapped ranges of a tracked allocation that lie within [address, address + size_bytes).
template <class Function>
void for_each_mapping(Inventory& inventory, CUdeviceptr address, std::size_t size_bytes,
                      Function function) {
  auto& mappings = inventory.mappings();
  for (auto next = mappings.lower_bound(address);
       next != mappings.end() && next->first - address < size_bytes;) {
    Mapping& mapping = (next++)->second;
    function(mapping);
  }
}

/// Backed memory looks like cuMemAlloc's, which these calls do not work on.
bool touches_plain(Inventory& inventory, CUdeviceptr address, std::size_t size_bytes) {
  const Mapping* first = inventory.find_mapping(address);
  if (first != nullptr && first->is_of_plains()) return true;
  bool plain = false;
  for_each_mapping(inventory, address, size_bytes,
                   [&](const Mapping& mapping) { plain = plain || mapping.is_of_plains(); });
  return plain;
}

/// A handle of the application's to memory of these properties.
void add_handle(Physical& physical, const CUmemAllocationProp& properties) {
  physical.asked = properties;
  physical.host_node = is_host_memory(properties) ? properties.location.id : -1;
  physical.references = 1;
}

void remember_access(Mapping& mapping, const CUmemAccessDesc& access) {
  if (access.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    std::erase_if(mapping.other_access, [&](const CUmemAccessDesc& before) {
      return before.location.type == access.location.type &&
             before.location.id == access.location.id;
    });
    mapping.other_access.push_back(access);
    return;
  }
  if (access.location.id < 0 || access.location.id >= kMaxDevices) return;
  const std::uint64_t bit = std::uint64_t{1} << access.location.id;
  mapping.readers &= ~bit;
  mapping.writers &= ~bit;
  if (access.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) mapping.readers |= bit;
  if (access.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) mapping.writers |= bit;
}

/// Memory of another process, under a value of the library; none if its descriptor cannot be kept.
Physical* track_imported(CUmemGenericAllocationHandle own, int descriptor) {
  CUmemAllocationProp told{};
  if (real::cuMemGetAllocationPropertiesFromHandle(&told, own) != CUDA_SUCCESS ||
      !can_track(told)) {
    return nullptr;
  }
  UniqueFd kept(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!kept) return nullptr;
  const int device = device_of(told);
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  Physical& physical = s.inventory.add_physical(own, 0, device, Origin::kImported);
  add_handle(physical, told);
  physical.shared = true;
  physical.retained_fd = move_high(kept.release());
  return &physical;
}

bool release_imported(ProcessState& s, CUmemGenericAllocationHandle handle) {
  const auto found = s.imported_handles.find(handle);
  if (found == s.imported_handles.end()) return false;
  if (--found->second == 0) s.imported_handles.erase(found);
  return true;
}

}  // namespace

namespace tracked {

CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t size_bytes, std::size_t alignment,
                             CUdeviceptr wanted, unsigned long long flags) {
  return real::cuMemAddressReserve(address, size_bytes, alignment, wanted, flags);
}

CUresult cuMemAddressFree(CUdeviceptr address, std::size_t size_bytes) {
  ProcessState& s = state();
  {
    const std::lock_guard lock(s.mutex);
    if (touches_plain(s.inventory, address, size_bytes)) return CUDA_ERROR_INVALID_VALUE;
  }
  return real::cuMemAddressFree(address, size_bytes);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size_bytes,
                     const CUmemAllocationProp* asked, unsigned long long flags) {
  if (handle == nullptr || asked == nullptr || !can_track(*asked)) {
    return real::cuMemCreate(handle, size_bytes, asked, flags);
  }
  CUmemAllocationProp exportable = *asked;
  exportable.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle own = 0;
  flush_deferred_frees();
  const int device = device_of(*asked);
  ProcessState& s = state();
  CUresult result = real::cuMemCreate(&own, size_bytes, &exportable, flags);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && !is_host_memory(*asked) &&
      make_room(device, size_bytes)) {
    result = real::cuMemCreate(&own, size_bytes, &exportable, flags);
  }
  if (result != CUDA_SUCCESS) {
    result = real::cuMemCreate(handle, size_bytes, asked, flags);
    const std::lock_guard lock(s.mutex);
    if (result == CUDA_SUCCESS) ++s.fallbacks;
    return result;
  }
  const std::lock_guard lock(s.mutex);
  Physical& physical = s.inventory.add_physical(own, size_bytes, device, Origin::kApplication);
  add_handle(physical, *asked);
  *handle = Inventory::to_handle(physical);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  ProcessState& s = state();
  {
    const std::lock_guard lock(s.mutex);
    if (Physical* physical = s.inventory.from_handle(handle)) {
      --physical->references;
      release_if_unused(s, *physical);
      return CUDA_SUCCESS;
    }
    if (Inventory::is_our_handle(handle)) return CUDA_ERROR_INVALID_VALUE;
    release_imported(s, handle);
  }
  return real::cuMemRelease(handle);
}

CUresult cuMemMap(CUdeviceptr address, std::size_t size_bytes, std::size_t offset_bytes,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  Physical* physical = s.inventory.from_handle(handle);
  if (physical == nullptr && Inventory::is_our_handle(handle)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = real::cuMemMap(address, size_bytes, offset_bytes,
                                         physical == nullptr ? handle : physical->handle, flags);
  if (result != CUDA_SUCCESS) return result;
  if (physical != nullptr) {
    // The driver maps no part of an allocation, only the whole (measured with driver 580).
    if (physical->size_bytes == 0) s.inventory.set_size(*physical, offset_bytes + size_bytes);
    s.inventory.add_mapping(address, size_bytes, offset_bytes, *physical);
  } else if (s.imported_handles.contains(handle)) {
    s.imported_mappings[address] = size_bytes;
  }
  return result;
}

CUresult cuMemUnmap(CUdeviceptr address, std::size_t size_bytes) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  if (touches_plain(s.inventory, address, size_bytes)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = real::cuMemUnmap(address, size_bytes);
  if (result != CUDA_SUCCESS) return result;
  for_each_mapping(s.inventory, address, size_bytes, [&](const Mapping& mapping) {
    const Mapping taken = s.inventory.take_mapping(mapping.address);
    release_if_unused(s, *taken.physical);
  });
  std::erase_if(s.imported_mappings,
                [&](const auto& imported) { return imported.first - address < size_bytes; });
  return result;
}

CUresult cuMemSetAccess(CUdeviceptr address, std::size_t size_bytes,
                        const CUmemAccessDesc* accesses, std::size_t count) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  if (touches_plain(s.inventory, address, size_bytes)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = real::cuMemSetAccess(address, size_bytes, accesses, count);
  if (result != CUDA_SUCCESS) return result;
  for_each_mapping(s.inventory, address, size_bytes, [&](Mapping& mapping) {
    for (std::size_t i = 0; i < count; ++i) remember_access(mapping, accesses[i]);
  });
  return result;
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                        CUdeviceptr address) {
  return real::cuMemGetAccess(flags, location, address);
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  Physical* physical = s.inventory.from_handle(handle);
  if (physical == nullptr) {
    if (Inventory::is_our_handle(handle)) return CUDA_ERROR_INVALID_VALUE;
    return real::cuMemExportToShareableHandle(shareable, handle, type, flags);
  }
  if ((physical->asked.requestedHandleTypes & type) == 0 || shareable == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult result = share(*physical);
  return result == CUDA_SUCCESS ? export_descriptor(*physical, static_cast<int*>(shareable))
                                : result;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  const CUresult result = real::cuMemImportFromShareableHandle(handle, shareable, type);
  if (result != CUDA_SUCCESS) return result;
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    const auto descriptor = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
    if (const Physical* physical = track_imported(*handle, descriptor)) {
      *handle = Inventory::to_handle(*physical);
      return CUDA_SUCCESS;
    }
  }
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  ++s.imported_handles[*handle];
  return result;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  const Physical* physical = s.inventory.from_handle(handle);
  if (physical == nullptr) {
    if (Inventory::is_our_handle(handle)) return CUDA_ERROR_INVALID_VALUE;
    return real::cuMemGetAllocationPropertiesFromHandle(properties, handle);
  }
  if (properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *properties = physical->asked;
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  const Mapping* mapping = s.inventory.find_mapping(reinterpret_cast<CUdeviceptr>(address));
  if (mapping != nullptr) {
    if (mapping->is_of_plains() || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    ++mapping->physical->references;
    *handle = Inventory::to_handle(*mapping->physical);
    return CUDA_SUCCESS;
  }
  const CUresult result = real::cuMemRetainAllocationHandle(handle, address);
  if (result != CUDA_SUCCESS) return result;
  const auto imported = s.imported_handles.find(*handle);
  if (imported != s.imported_handles.end()) ++imported->second;
  return result;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, std::size_t multicast_offset,
                            CUmemGenericAllocationHandle memory, std::size_t memory_offset,
                            std::size_t size_bytes, unsigned long long flags) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  Physical* physical = s.inventory.from_handle(memory);
  const CUresult result = real::cuMulticastBindMem(multicast, multicast_offset,
                                                   physical == nullptr ? memory : physical->handle,
                                                   memory_offset, size_bytes, flags);
  if (result == CUDA_SUCCESS && physical != nullptr) physical->foreign = true;
  return result;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, std::size_t multicast_offset,
                             CUdeviceptr address, std::size_t size_bytes,
                             unsigned long long flags) {
  const CUresult result =
      real::cuMulticastBindAddr(multicast, multicast_offset, address, size_bytes, flags);
  if (result != CUDA_SUCCESS) return result;
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  if (Mapping* mapping = s.inventory.find_mapping(address)) mapping->physical->foreign = true;
  return result;
}

namespace {

/// Tiles of sparse arrays, with the driver's handles instead of ours. Arrays cannot be unmapped and
/// mapped again as ranges can, so such memory cannot be detached.
template <class Function>
CUresult map_arrays(CUarrayMapInfo* list, unsigned int count, Function real_call) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  if (list == nullptr) return real_call(list);
  std::vector<CUarrayMapInfo> translated(list, list + count);
  for (CUarrayMapInfo& info : translated) {
    Physical* physical = s.inventory.from_handle(info.memHandle.memHandle);
    if (physical == nullptr) continue;
    info.memHandle.memHandle = physical->handle;
    physical->foreign = true;
  }
  return real_call(translated.data());
}

}  // namespace

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

}  // namespace tracked
}  // namespace gcr::preload

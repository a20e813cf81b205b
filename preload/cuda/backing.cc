#include "preload/cuda/backing.h"

#include <fcntl.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "preload/cuda/capture.h"
#include "preload/cuda/contexts.h"
#include "preload/cuda/driver_calls.h"
#include "preload/cuda/room.h"
#include "preload/descriptors.h"
#include "preload/log.h"

namespace gcr::preload {
namespace {

/// From so many buffers on, medium allocations come out of arenas: a detach and an attach take a
/// time for each buffer. Below, memory that is freed goes back to the driver at once.
constexpr std::uint32_t kManyBuffers = 128;

CUmemAllocationProp backing_properties(int device, bool rdma_capable) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  properties.allocFlags.gpuDirectRDMACapable = rdma_capable ? 1 : 0;
  return properties;
}

bool attribute(CUdevice_attribute what, int device, int* value) {
  return real::cuDeviceGetAttribute(value, what, device) == CUDA_SUCCESS;
}

DeviceFacts ask_device(int device) {
  DeviceFacts facts;
  facts.asked = true;
  facts.uuid = device_uuid(device);
  int vmm = 0, posix_fd = 0, rdma = 0;
  if (!attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device, &vmm) || !vmm ||
      !attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device,
                 &posix_fd) ||
      !posix_fd) {
    return facts;
  }
  // Memory of cuMemAlloc can be reached by RDMA wherever the device can do that at all.
  facts.rdma_capable =
      attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device, &rdma) &&
      rdma != 0;
  const CUmemAllocationProp properties = backing_properties(device, facts.rdma_capable);
  facts.can_back =
      real::cuMemGetAllocationGranularity(&facts.granularity_bytes, &properties,
                                          CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS &&
      facts.granularity_bytes != 0;
  return facts;
}

enum class Fit { kTaken, kNoRoom, kElsewhere };

/// From the arenas that there are.
Fit take_range(CUcontext context, std::size_t requested_bytes, CUdeviceptr* address) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  if (any_capture(s)) return Fit::kElsewhere;
  const CUdeviceptr taken = s.arenas.take(context, requested_bytes);
  if (taken == 0) {
    const bool wanted =
        requested_bytes < kSmallestMediumBytes || s.inventory.tracked_count() >= kManyBuffers;
    return wanted ? Fit::kNoRoom : Fit::kElsewhere;
  }
  s.inventory.add_plain(taken, requested_bytes);
  *address = taken;
  return Fit::kTaken;
}

/// Another arena for `context`: of the size that is due or, where memory is short, the smallest.
bool add_arena(CUcontext context, int device, std::size_t requested_bytes) {
  const ArenaKind& kind = kind_of(requested_bytes);
  ProcessState& s = state();
  std::size_t wanted_bytes = 0;
  {
    const std::lock_guard lock(s.mutex);
    wanted_bytes = s.arenas.next_size_bytes(context, requested_bytes, s.inventory.tracked_bytes());
  }
  Backing backing;
  if (!make_backing(device, wanted_bytes, &backing) &&
      (wanted_bytes <= kind.smallest_bytes ||
       !make_backing(device, kind.smallest_bytes, &backing))) {
    return false;
  }
  const std::lock_guard lock(s.mutex);
  const Mapping& mapping = add_backing_of(s, context, device, backing);
  s.arenas.add(Arena(kind, mapping.physical->id, context, backing.address, backing.size_bytes));
  return true;
}

/// False: there is no memory, or it should come from elsewhere. A capture stays undisturbed: there
/// the driver answers as it does during one.
bool allocate_in_arena(CUcontext context, int device, std::size_t requested_bytes,
                       CUdeviceptr* address) {
  Fit fit = take_range(context, requested_bytes, address);
  if (fit != Fit::kNoRoom) return fit == Fit::kTaken;
  const std::lock_guard growing(state().growth);
  while ((fit = take_range(context, requested_bytes, address)) == Fit::kNoRoom) {
    if (!add_arena(context, device, requested_bytes)) return false;
  }
  return fit == Fit::kTaken;
}

bool allocate_in(CUcontext context, int device, std::size_t requested_bytes, CUdeviceptr* address) {
  if (requested_bytes <= kLargestMediumBytes &&
      allocate_in_arena(context, device, requested_bytes, address)) {
    return true;
  }
  if (requested_bytes < kSmallestMediumBytes) return false;
  Backing backing;
  if (!make_backing(device, requested_bytes, &backing)) return false;
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  add_backing_of(s, context, device, backing);
  s.inventory.add_plain(backing.address, requested_bytes);
  *address = backing.address;
  return true;
}

/// Those of a mapping that is unmapped, unless others have them from the driver together with it.
CUresult free_addresses(const Mapping& mapping) {
  if (mapping.reservation == nullptr) {
    return real::cuMemAddressFree(mapping.address, mapping.size_bytes);
  }
  Reservation whole = {};
  {
    ProcessState& s = state();
    const std::lock_guard lock(s.mutex);
    if (--mapping.reservation->mappings != 0) return CUDA_SUCCESS;
    whole = *mapping.reservation;
    s.reservations.erase(whole.address);
  }
  return real::cuMemAddressFree(whole.address, whole.size_bytes);
}

}  // namespace

CUuuid device_uuid(int device) {
  CUuuid uuid{};
  if (real::cuDeviceGetUuid_v2(&uuid, device) != CUDA_SUCCESS) {
    real::cuDeviceGetUuid(&uuid, device);
  }
  return uuid;
}

bool current_context(CUcontext* context, int* device) {
  CUdevice current = 0;
  if (real::cuCtxGetCurrent(context) != CUDA_SUCCESS || *context == nullptr) return false;
  if (real::cuCtxGetDevice(&current) != CUDA_SUCCESS) return false;
  *device = current;
  return current >= 0 && current < kMaxDevices;
}

int device_of(const CUmemAllocationProp& properties) {
  const CUmemLocation& location = properties.location;
  CUcontext context = nullptr;
  int device = 0;
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id >= 0 &&
      location.id < kMaxDevices) {
    device = location.id;
  } else if (!current_context(&context, &device)) {
    device = 0;
  }
  device_facts(device);
  return device;
}

DeviceFacts device_facts(int device) {
  ProcessState& s = state();
  {
    const std::lock_guard lock(s.mutex);
    if (s.devices[device].asked) return s.devices[device];
  }
  const DeviceFacts facts = ask_device(device);
  const std::lock_guard lock(s.mutex);
  if (!s.devices[device].asked) s.devices[device] = facts;
  return s.devices[device];
}

bool create_memory(int device, std::size_t size_bytes, CUmemGenericAllocationHandle* handle) {
  const DeviceFacts facts = device_facts(device);
  CUmemAllocationProp properties = backing_properties(device, facts.rdma_capable);
  CUresult result = real::cuMemCreate(handle, size_bytes, &properties, 0);
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY || !facts.rdma_capable) {
    return result == CUDA_SUCCESS;
  }
  properties = backing_properties(device, false);
  if (real::cuMemCreate(handle, size_bytes, &properties, 0) != CUDA_SUCCESS) return false;
  log_line("device %d: memory for RDMA cannot be exported (%d)", device, result);
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  s.devices[device].rdma_capable = false;
  return true;
}

CUresult map_at(CUdeviceptr address, std::size_t size_bytes, CUmemGenericAllocationHandle handle,
                int device) {
  CUresult result = real::cuMemMap(address, size_bytes, 0, handle, 0);
  if (result != CUDA_SUCCESS) return result;
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  result = real::cuMemSetAccess(address, size_bytes, &access, 1);
  if (result != CUDA_SUCCESS) real::cuMemUnmap(address, size_bytes);
  return result;
}

CUdeviceptr map_whole(CUmemGenericAllocationHandle handle, std::size_t size_bytes,
                      std::size_t alignment_bytes, int device) {
  CUdeviceptr address = 0;
  if (real::cuMemAddressReserve(&address, size_bytes, alignment_bytes, 0, 0) != CUDA_SUCCESS) {
    return 0;
  }
  if (map_at(address, size_bytes, handle, device) == CUDA_SUCCESS) return address;
  real::cuMemAddressFree(address, size_bytes);
  return 0;
}

void note_driver_allocation(CUdeviceptr address, std::size_t size_bytes, bool managed) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  s.inventory.add_untracked(address, size_bytes, managed);
  if (!managed) {
    ++s.fallbacks;
    log_line("%zu bytes at 0x%llx stay with the driver", size_bytes, address);
  }
}

bool is_backed(ProcessState& s, const Mapping& mapping, CUdeviceptr address) {
  const Plain* plain = s.inventory.find_plain(address);
  return plain != nullptr && plain->address == address &&
         mapping.physical->origin == Origin::kLibrary;
}

bool release_unused(bool all) {
  ProcessState& s = state();
  bool found = false;
  for (;; found = true) {
    std::optional<Mapping> mapping;
    {
      const std::lock_guard lock(s.mutex);
      if (any_capture(s)) return found;
      if (const CUdeviceptr arena = s.arenas.remove_empty(all)) {
        mapping = s.inventory.take_mapping(arena);
      } else {
        mapping = take_unused_stretch(s, all);
      }
    }
    if (!mapping.has_value()) return found;
    take_apart(*mapping);
  }
}

bool make_backing(int device, std::size_t wanted_bytes, Backing* backing) {
  const DeviceFacts facts = device_facts(device);
  const std::size_t unit = facts.granularity_bytes;
  if (!facts.can_back || wanted_bytes > SIZE_MAX - unit) return false;
  backing->size_bytes = (wanted_bytes + unit - 1) / unit * unit;
  bool created = create_memory(device, backing->size_bytes, &backing->handle);
  if (!created && release_unused(true)) {
    created = create_memory(device, backing->size_bytes, &backing->handle);
  }
  if (!created) return false;
  backing->address = map_whole(backing->handle, backing->size_bytes, unit, device);
  if (backing->address == 0) real::cuMemRelease(backing->handle);
  return backing->address != 0;
}

Mapping& add_backing(ProcessState& s, int device, const Backing& backing) {
  Physical& physical =
      s.inventory.add_physical(backing.handle, backing.size_bytes, device, Origin::kLibrary);
  Mapping& mapping = s.inventory.add_mapping(backing.address, backing.size_bytes, 0, physical);
  mapping.readers = mapping.writers = std::uint64_t{1} << device;
  return mapping;
}

Mapping& add_backing_of(ProcessState& s, CUcontext context, int device, const Backing& backing) {
  note_context(s, context, device);
  Mapping& mapping = add_backing(s, device, backing);
  mapping.context = context;
  if (!s.peers.empty()) apply_access(s, mapping);
  return mapping;
}

bool allocate_backed(std::size_t requested_bytes, CUdeviceptr* address) {
  CUcontext context = nullptr;
  int device = 0;
  if (requested_bytes == 0 || !current_context(&context, &device)) return false;
  return allocate_in(context, device, requested_bytes, address) ||
         (make_room(device, requested_bytes) &&
          allocate_in(context, device, requested_bytes, address));
}

CUresult synchronize(CUcontext context) {
  CUcontext current = nullptr;
  if (real::cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context) {
    return real::cuCtxSynchronize();
  }
  const CurrentContext inside(context);
  return inside.result() == CUDA_SUCCESS ? real::cuCtxSynchronize() : inside.result();
}

CUresult export_descriptor(const Physical& physical, int* fd) {
  if (physical.retained_fd >= 0) {
    *fd = ::fcntl(physical.retained_fd, F_DUPFD_CLOEXEC, 0);
    return *fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
  }
  return real::cuMemExportToShareableHandle(fd, physical.handle,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

CUresult share(Physical& physical) {
  if (physical.retained_fd < 0) {
    int fd = -1;
    const CUresult result = export_descriptor(physical, &fd);
    if (result != CUDA_SUCCESS) return result;
    physical.retained_fd = move_high(fd);
  }
  physical.shared = true;
  return CUDA_SUCCESS;
}

void release_if_unused(ProcessState& s, Physical& physical) {
  if (physical.references != 0 || physical.mappings != 0) return;
  if (physical.handle != 0) real::cuMemRelease(physical.handle);
  close_descriptors(physical);
  s.inventory.remove_physical(physical);
}

Freed take_plain(ProcessState& s, Mapping& mapping, CUdeviceptr address) {
  Freed freed;
  freed.context = mapping.context;
  if (const Arena* arena = s.arenas.find(address)) {
    freed.range = {arena->number(), address, s.inventory.find_plain(address)->requested_bytes};
    s.inventory.remove_plain(address);
    return freed;
  }
  s.inventory.remove_plain(address);
  if (!s.inventory.has_plains(mapping)) freed.mapping = s.inventory.take_mapping(mapping.address);
  return freed;
}

void release(const Freed& freed) {
  if (freed.mapping.physical != nullptr) {
    take_apart(freed.mapping);
    return;
  }
  {
    const std::lock_guard lock(state().mutex);
    if (!state().arenas.give_back(freed.range)) return;
  }
  release_unused(false);
}

void take_apart(const Mapping& mapping) {
  const CUresult unmapped = real::cuMemUnmap(mapping.address, mapping.size_bytes);
  const CUresult freed = free_addresses(mapping);
  if (unmapped != CUDA_SUCCESS || freed != CUDA_SUCCESS) {
    log_line("cannot give back %zu bytes at 0x%llx: unmap %d, address %d", mapping.size_bytes,
             mapping.address, unmapped, freed);
  }
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  release_if_unused(s, *mapping.physical);
}

void flush_deferred_frees() {
  ProcessState& s = state();
  std::vector<DeferredFree> ready;
  {
    const std::lock_guard lock(s.mutex);
    if (s.deferred_frees.empty() || any_capture(s)) return;
    const auto first_ready = std::partition(
        s.deferred_frees.begin(), s.deferred_frees.end(), [](const DeferredFree& deferred) {
          return deferred.done != nullptr &&
                 real::cuEventQuery(deferred.done) == CUDA_ERROR_NOT_READY;
        });
    ready.assign(std::make_move_iterator(first_ready),
                 std::make_move_iterator(s.deferred_frees.end()));
    s.deferred_frees.erase(first_ready, s.deferred_frees.end());
  }
  CUcontext idle = nullptr;
  for (const DeferredFree& deferred : ready) {
    const CUcontext context = deferred.freed.context;
    if (deferred.done != nullptr) {
      real::cuEventDestroy_v2(deferred.done);
    } else if (context != idle) {
      synchronize(context);
      idle = context;
    }
    release(deferred.freed);
  }
}

CUresult apply_access(ProcessState& s, Mapping& mapping) {
  std::uint64_t wanted = std::uint64_t{1} << mapping.physical->device;
  if (mapping.physical->origin == Origin::kImported) wanted = mapping.writers;
  if (mapping.pool != nullptr) wanted = mapping.pool->accessors;
  for (const PeerAccess& peer : s.peers) {
    if (peer.owner == mapping.context) wanted |= std::uint64_t{1} << peer.accessor_device;
  }
  CUmemAccessDesc changes[kMaxDevices];
  std::size_t count = 0;
  for (int device = 0; device < kMaxDevices; ++device) {
    const std::uint64_t bit = std::uint64_t{1} << device;
    if ((wanted & bit) == (mapping.writers & bit)) continue;
    changes[count++] = {
        {CU_MEM_LOCATION_TYPE_DEVICE, device},
        (wanted & bit) != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE};
  }
  if (count == 0) return CUDA_SUCCESS;
  const CUresult result = real::cuMemSetAccess(mapping.address, mapping.size_bytes, changes, count);
  if (result == CUDA_SUCCESS) {
    mapping.readers = mapping.writers = wanted;
  } else {
    log_line("cannot change the access of peers to 0x%llx: %d", mapping.address, result);
  }
  return result;
}

}  // namespace gcr::preload

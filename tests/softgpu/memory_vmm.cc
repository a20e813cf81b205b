// Virtual memory management: reservations, handles, mappings, with the real driver's refusals.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <mutex>

#include "src/base/units.h"
#include "tests/softgpu/mapping.h"
#include "tests/softgpu/memory.h"

namespace gcr::softgpu {
namespace {

constexpr std::uint64_t kGranularity = kChunkBytes;

bool is_multiple(std::uint64_t value) { return value % kGranularity == 0; }

int protection_of(CUmemAccess_flags flags) {
  switch (flags) {
    case CU_MEM_ACCESS_FLAGS_PROT_READ:
      return PROT_READ;
    case CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
      return kReadWrite;
    default:
      return PROT_NONE;
  }
}

/// Where memory may be asked for, and with which handle types. The host has one NUMA node.
CUresult check_properties(const DeviceTable& devices, const CUmemAllocationProp& properties) {
  const bool exportable = properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;
  switch (properties.location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      if (!devices.has(properties.location.id)) return CUDA_ERROR_INVALID_DEVICE;
      break;
    case CU_MEM_LOCATION_TYPE_HOST:
      if (exportable) return CUDA_ERROR_INVALID_VALUE;
      break;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      if (properties.location.id != kHostNumaNode) return CUDA_ERROR_INVALID_VALUE;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  const bool by_descriptor_only =
      (properties.requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0;
  return by_descriptor_only ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

void Access::give(const CUmemAccessDesc& access) {
  const int protection = protection_of(access.flags);
  if (access.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    host = protection;
    return;
  }
  const std::uint32_t bit = 1U << access.location.id;
  readers = (protection & PROT_READ) != 0 ? readers | bit : readers & ~bit;
  writers = (protection & PROT_WRITE) != 0 ? writers | bit : writers & ~bit;
}

int Access::of_device(int ordinal) const {
  const std::uint32_t bit = 1U << ordinal;
  return ((readers & bit) != 0 ? PROT_READ : 0) | ((writers & bit) != 0 ? PROT_WRITE : 0);
}

int Access::widest() const {
  return host | (readers != 0 ? PROT_READ : 0) | (writers != 0 ? PROT_WRITE : 0);
}

CUresult Memory::reserve(std::uint64_t bytes, std::uint64_t alignment, std::uintptr_t hint,
                         std::uintptr_t* address) {
  if (bytes == 0 || !is_multiple(bytes) || (alignment & (alignment - 1)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::lock_guard lock(mutex_);
  const std::uintptr_t start =
      reserve_addresses(bytes, std::max<std::uint64_t>(alignment, kGranularity), hint);
  if (start == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  reservations_[start] = bytes;
  *address = start;
  return CUDA_SUCCESS;
}

CUresult Memory::unreserve(std::uintptr_t address, std::uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second != bytes || overlaps(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ::munmap(reinterpret_cast<void*>(address), bytes);
  reservations_.erase(found);
  return CUDA_SUCCESS;
}

bool Memory::reserved(std::uintptr_t address, std::uint64_t bytes) const {
  const auto next = reservations_.upper_bound(address);
  if (next == reservations_.begin()) return false;
  const auto& [start, size] = *std::prev(next);
  return address - start <= size && bytes <= size - (address - start);
}

CUmemGenericAllocationHandle Memory::add_handle(std::shared_ptr<Physical> physical) {
  const auto handle = reinterpret_cast<CUmemGenericAllocationHandle>(physical.get());
  const auto [entry, fresh] = handles_.try_emplace(handle, Handle{std::move(physical)});
  if (!fresh) ++entry->second.references;
  return handle;
}

CUresult Memory::create(std::uint64_t bytes, const CUmemAllocationProp& properties,
                        CUmemGenericAllocationHandle* handle) {
  if (bytes == 0 || !is_multiple(bytes) || properties.type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult refused = check_properties(*devices_, properties)) return refused;
  const int ordinal = properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE
                          ? properties.location.id
                          : CU_DEVICE_CPU;
  UniqueFd file;
  if (const CUresult result = create_file(ordinal, bytes, &file)) return result;
  std::lock_guard lock(mutex_);
  auto physical = make_physical(ordinal, bytes);
  physical->vmm = true;
  physical->file = std::move(file);
  physical->properties = properties;
  *handle = add_handle(std::move(physical));
  return CUDA_SUCCESS;
}

CUresult Memory::import(int file, CUmemGenericAllocationHandle* handle) {
  std::lock_guard lock(mutex_);
  const bool on_host = is_host_file(file);
  const int ordinal = on_host ? CU_DEVICE_CPU : devices_->holder_of(file);
  struct stat status {};
  if ((ordinal < 0 && !on_host) || ::fstat(file, &status) != 0 || status.st_size == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  UniqueFd own(::fcntl(file, F_DUPFD_CLOEXEC, 0));
  if (!own) return CUDA_ERROR_OPERATING_SYSTEM;
  auto physical = make_physical(ordinal, static_cast<std::uint64_t>(status.st_size));
  physical->vmm = true;
  physical->imported = true;
  physical->file = std::move(own);
  physical->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  physical->properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal};
  if (on_host) physical->properties.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, kHostNumaNode};
  physical->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  *handle = add_handle(std::move(physical));
  return CUDA_SUCCESS;
}

std::shared_ptr<Physical> Memory::physical_of(CUmemGenericAllocationHandle handle) const {
  const auto found = handles_.find(handle);
  return found == handles_.end() ? nullptr : found->second.physical;
}

CUresult Memory::export_file(CUmemGenericAllocationHandle handle, int* file) {
  std::lock_guard lock(mutex_);
  const auto physical = physical_of(handle);
  if (physical == nullptr || physical->imported ||
      (physical->properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *file = ::fcntl(physical->file.get(), F_DUPFD_CLOEXEC, 0);
  if (*file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  physical->exported = true;
  return CUDA_SUCCESS;
}

CUresult Memory::retain(std::uintptr_t address, CUmemGenericAllocationHandle* handle) {
  std::lock_guard lock(mutex_);
  const Range* range = at(address);
  if (range == nullptr || range->kind != RangeKind::kVmm) return CUDA_ERROR_INVALID_VALUE;
  *handle = add_handle(range->physical);
  return CUDA_SUCCESS;
}

CUresult Memory::release(CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(mutex_);
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.references == 0) handles_.erase(found);
  return CUDA_SUCCESS;
}

CUresult Memory::properties(CUmemGenericAllocationHandle handle, CUmemAllocationProp* properties) {
  std::lock_guard lock(mutex_);
  const auto physical = physical_of(handle);
  if (physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *properties = physical->properties;
  return CUDA_SUCCESS;
}

CUresult Memory::map(std::uintptr_t address, std::uint64_t bytes, std::uint64_t offset,
                     CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(mutex_);
  auto physical = physical_of(handle);
  if (physical == nullptr || bytes == 0 || !is_multiple(bytes) || !is_multiple(address) ||
      offset != 0 || bytes > physical->bytes || !reserved(address, bytes) ||
      overlaps(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!map_file_over(address, bytes, physical->file.get(), 0, PROT_NONE)) {
    return CUDA_ERROR_MAP_FAILED;
  }
  Range& range = add_range(address, bytes, RangeKind::kVmm, nullptr);
  range.ordinal = physical->ordinal;
  range.handle_types = physical->properties.requestedHandleTypes;
  range.physical = std::move(physical);
  return CUDA_SUCCESS;
}

bool Memory::whole_ranges(std::uintptr_t address, std::uint64_t bytes) const {
  const std::uintptr_t end = address + bytes;
  while (address < end) {
    const auto found = ranges_.find(address);
    if (found == ranges_.end() || found->second.kind != RangeKind::kVmm) return false;
    address += found->second.bytes;
  }
  return address == end;
}

CUresult Memory::unmap(std::uintptr_t address, std::uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes == 0 || !whole_ranges(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  auto at = ranges_.find(address);
  while (at != ranges_.end() && at->first < address + bytes) {
    const auto next = std::next(at);
    drop_range(at);
    at = next;
  }
  return CUDA_SUCCESS;
}

CUresult Memory::check_access(std::uintptr_t address, std::uint64_t bytes,
                              const CUmemAccessDesc& access) const {
  const CUmemLocation& location = access.location;
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return devices_->has(location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      if (location.id != kHostNumaNode) return CUDA_ERROR_INVALID_VALUE;
      break;
    case CU_MEM_LOCATION_TYPE_HOST:
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  // The CPU cannot reach VRAM.
  for (auto at = ranges_.find(address); at != ranges_.end() && at->first < address + bytes; ++at) {
    if (!at->second.on_host()) return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

CUresult Memory::set_access(std::uintptr_t address, std::uint64_t bytes,
                            std::span<const CUmemAccessDesc> accesses) {
  std::lock_guard lock(mutex_);
  if (bytes == 0 || !whole_ranges(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  for (const CUmemAccessDesc& access : accesses) {
    if (const CUresult refused = check_access(address, bytes, access)) return refused;
  }
  for (auto at = ranges_.find(address); at != ranges_.end() && at->first < address + bytes; ++at) {
    Range& range = at->second;
    for (const CUmemAccessDesc& access : accesses) range.access.give(access);
    if (::mprotect(reinterpret_cast<void*>(range.start), range.bytes, range.protection()) != 0) {
      return CUDA_ERROR_UNKNOWN;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace gcr::softgpu

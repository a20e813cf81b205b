// Virtual memory management: reservations, handles, mappings, with the real driver's refusals.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <mutex>

#include "src/base/units.h"
#include "tests/softgpu/engine/mapping.h"
#include "tests/softgpu/engine/memory.h"

namespace gcr::softgpu {
namespace {

constexpr std::uint64_t kGranularity = kChunkBytes;

bool is_multiple(std::uint64_t value) { return value % kGranularity == 0; }

/// The locations where memory may be requested, and the handle types. The host has one NUMA node.
Result check_properties(const DeviceTable& devices, const AllocationProperties& properties) {
  const bool exportable = properties.handle_types != 0;
  switch (properties.location.place) {
    case Place::kDevice:
      if (!devices.has(properties.location.id)) return Result::kInvalidDevice;
      break;
    case Place::kHost:
      if (exportable) return Result::kInvalidValue;
      break;
    case Place::kHostNuma:
      if (properties.location.id != kHostNumaNode) return Result::kInvalidValue;
      break;
    default:
      return Result::kInvalidValue;
  }
  const bool by_descriptor_only = (properties.handle_types & ~kByDescriptor) == 0;
  return by_descriptor_only ? Result::kSuccess : Result::kNotSupported;
}

}  // namespace

void Access::give(const AccessGrant& access) {
  const int protection = access.protection;
  if (access.location.place != Place::kDevice) {
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

Result Memory::reserve(std::uint64_t bytes, std::uint64_t alignment, std::uintptr_t hint,
                       std::uintptr_t* address) {
  if (bytes == 0 || !is_multiple(bytes) || (alignment & (alignment - 1)) != 0) {
    return Result::kInvalidValue;
  }
  std::lock_guard lock(mutex_);
  const std::uintptr_t start =
      reserve_addresses(bytes, std::max<std::uint64_t>(alignment, kGranularity), hint);
  if (start == 0) return Result::kOutOfMemory;
  reservations_[start] = bytes;
  *address = start;
  return Result::kSuccess;
}

Result Memory::unreserve(std::uintptr_t address, std::uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second != bytes || overlaps(address, bytes)) {
    return Result::kInvalidValue;
  }
  ::munmap(reinterpret_cast<void*>(address), bytes);
  reservations_.erase(found);
  return Result::kSuccess;
}

bool Memory::reserved(std::uintptr_t address, std::uint64_t bytes) const {
  const auto next = reservations_.upper_bound(address);
  if (next == reservations_.begin()) return false;
  const auto& [start, size] = *std::prev(next);
  return address - start <= size && bytes <= size - (address - start);
}

MemoryHandle Memory::add_handle(std::shared_ptr<Physical> physical) {
  const auto handle = reinterpret_cast<std::uintptr_t>(physical.get());
  const auto [entry, fresh] = handles_.try_emplace(handle, Handle{std::move(physical)});
  if (!fresh) ++entry->second.references;
  return handle;
}

Result Memory::create(std::uint64_t bytes, const AllocationProperties& properties,
                      MemoryHandle* handle) {
  if (bytes == 0 || !is_multiple(bytes)) return Result::kInvalidValue;
  if (const Result refused = check_properties(*devices_, properties)) return refused;
  const int ordinal =
      properties.location.place == Place::kDevice ? properties.location.id : kHostOrdinal;
  UniqueFd file;
  if (const Result result = create_file(ordinal, bytes, &file)) return result;
  std::lock_guard lock(mutex_);
  auto physical = make_physical(ordinal, bytes);
  physical->vmm = true;
  physical->file = std::move(file);
  physical->properties = properties;
  *handle = add_handle(std::move(physical));
  return Result::kSuccess;
}

Result Memory::import(int file, MemoryHandle* handle) {
  std::lock_guard lock(mutex_);
  const bool on_host = is_host_file(file);
  const int ordinal = on_host ? kHostOrdinal : devices_->holder_of(file);
  struct stat status {};
  if ((ordinal < 0 && !on_host) || ::fstat(file, &status) != 0 || status.st_size == 0) {
    return Result::kInvalidValue;
  }
  if (!on_host && devices_->devices[ordinal].is_strange()) return Result::kInvalidDevice;
  UniqueFd own(::fcntl(file, F_DUPFD_CLOEXEC, 0));
  if (!own) return Result::kOperatingSystem;
  auto physical = make_physical(ordinal, static_cast<std::uint64_t>(status.st_size));
  physical->vmm = true;
  physical->imported = true;
  physical->file = std::move(own);
  physical->properties.location = {Place::kDevice, ordinal};
  if (on_host) physical->properties.location = {Place::kHostNuma, kHostNumaNode};
  physical->properties.handle_types = kByDescriptor;
  *handle = add_handle(std::move(physical));
  return Result::kSuccess;
}

std::shared_ptr<Physical> Memory::physical_of(MemoryHandle handle) const {
  const auto found = handles_.find(handle);
  return found == handles_.end() ? nullptr : found->second.physical;
}

Result Memory::export_file(MemoryHandle handle, int* file) {
  std::lock_guard lock(mutex_);
  const auto physical = physical_of(handle);
  if (physical == nullptr || physical->imported ||
      (physical->properties.handle_types & kByDescriptor) == 0) {
    return Result::kInvalidValue;
  }
  *file = ::fcntl(physical->file.get(), F_DUPFD_CLOEXEC, 0);
  if (*file < 0) return Result::kOperatingSystem;
  physical->exported = true;
  return Result::kSuccess;
}

Result Memory::retain(std::uintptr_t address, MemoryHandle* handle) {
  std::lock_guard lock(mutex_);
  const Range* range = at(address);
  if (range == nullptr || range->kind != RangeKind::kVmm) return Result::kInvalidValue;
  *handle = add_handle(range->physical);
  return Result::kSuccess;
}

Result Memory::release(MemoryHandle handle) {
  std::lock_guard lock(mutex_);
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return Result::kInvalidValue;
  if (--found->second.references == 0) handles_.erase(found);
  return Result::kSuccess;
}

Result Memory::properties(MemoryHandle handle, AllocationProperties* properties) {
  std::lock_guard lock(mutex_);
  const auto physical = physical_of(handle);
  if (physical == nullptr) return Result::kInvalidValue;
  *properties = physical->properties;
  return Result::kSuccess;
}

Result Memory::map(std::uintptr_t address, std::uint64_t bytes, std::uint64_t offset,
                   MemoryHandle handle) {
  std::lock_guard lock(mutex_);
  auto physical = physical_of(handle);
  if (physical == nullptr || bytes == 0 || !is_multiple(bytes) || !is_multiple(address) ||
      offset != 0 || bytes > physical->bytes || !reserved(address, bytes) ||
      overlaps(address, bytes)) {
    return Result::kInvalidValue;
  }
  if (!map_file_over(address, bytes, physical->file.get(), 0, PROT_NONE)) {
    return Result::kMapFailed;
  }
  Range& range = add_range(address, bytes, RangeKind::kVmm, nullptr);
  range.ordinal = physical->ordinal;
  range.handle_types = physical->properties.handle_types;
  range.physical = std::move(physical);
  return Result::kSuccess;
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

Result Memory::unmap(std::uintptr_t address, std::uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes == 0 || !whole_ranges(address, bytes)) return Result::kInvalidValue;
  auto at = ranges_.find(address);
  while (at != ranges_.end() && at->first < address + bytes) {
    const auto next = std::next(at);
    drop_range(at);
    at = next;
  }
  return Result::kSuccess;
}

Result Memory::check_access(std::uintptr_t address, std::uint64_t bytes,
                            const AccessGrant& access) const {
  const Location& location = access.location;
  switch (location.place) {
    case Place::kDevice:
      return devices_->has(location.id) ? Result::kSuccess : Result::kInvalidDevice;
    case Place::kHostNuma:
      if (location.id != kHostNumaNode) return Result::kInvalidValue;
      break;
    case Place::kHost:
      break;
    default:
      return Result::kInvalidValue;
  }
  // The CPU cannot reach VRAM.
  for (auto at = ranges_.find(address); at != ranges_.end() && at->first < address + bytes; ++at) {
    if (!at->second.on_host()) return Result::kNotSupported;
  }
  return Result::kSuccess;
}

Result Memory::set_access(std::uintptr_t address, std::uint64_t bytes,
                          std::span<const AccessGrant> accesses) {
  std::lock_guard lock(mutex_);
  if (bytes == 0 || !whole_ranges(address, bytes)) return Result::kInvalidValue;
  for (const AccessGrant& access : accesses) {
    if (const Result refused = check_access(address, bytes, access)) return refused;
  }
  for (auto at = ranges_.find(address); at != ranges_.end() && at->first < address + bytes; ++at) {
    Range& range = at->second;
    for (const AccessGrant& access : accesses) range.access.give(access);
    if (::mprotect(reinterpret_cast<void*>(range.start), range.bytes, range.protection()) != 0) {
      return Result::kUnknown;
    }
  }
  return Result::kSuccess;
}

}  // namespace gcr::softgpu

#include "preload/memory/vmm.h"

#include <fcntl.h>

#include "preload/descriptors.h"
#include "preload/memory/backing.h"
#include "preload/memory/room.h"
#include "src/base/unique_fd.h"

namespace gcr::preload {
namespace {

/// Calls `function` for the mappings that begin within [address, address + size_bytes).
template <class Function>
void for_each_mapping(Inventory& inventory, Address address, std::size_t size_bytes,
                      Function function) {
  auto& mappings = inventory.mappings();
  for (auto next = mappings.lower_bound(address);
       next != mappings.end() && next->first - address < size_bytes;) {
    Mapping& mapping = (next++)->second;
    function(mapping);
  }
}

/// Whether the range touches plain allocations, on which the calls of this file must fail.
bool touches_plain(Inventory& inventory, Address address, std::size_t size_bytes) {
  const Mapping* first = inventory.find_mapping(address);
  if (first != nullptr && first->holds_plains()) return true;
  bool plain = false;
  for_each_mapping(inventory, address, size_bytes,
                   [&](const Mapping& mapping) { plain = plain || mapping.holds_plains(); });
  return plain;
}

/// Records the application's first handle to `physical` and the properties that it requested.
void add_handle(Physical& physical, const Asked& asked) {
  physical.asked = asked;
  physical.host_node = asked.host_node;
  physical.references = 1;
}

void remember_access(Mapping& mapping, const Access& access) {
  if (access.location_type != Access::kDevice) {
    std::erase_if(mapping.other_access, [&](const Access& before) {
      return before.location_type == access.location_type && before.id == access.id;
    });
    mapping.other_access.push_back(access);
    return;
  }
  if (access.id < 0 || access.id >= kMaxDevices) return;
  const std::uint64_t bit = std::uint64_t{1} << access.id;
  mapping.readers &= ~bit;
  mapping.writers &= ~bit;
  if (access.rights != Rights::kNone) mapping.readers |= bit;
  if (access.rights == Rights::kReadWrite) mapping.writers |= bit;
}

/// Adds memory imported from another process to the inventory; null if its descriptor cannot be
/// kept.
Physical* track_imported(Runtime& r, Handle own, int descriptor) {
  Asked told;
  if (r.driver.properties_of(own, &told) != Result::kSuccess || !told.trackable) return nullptr;
  UniqueFd kept(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!kept) return nullptr;
  const int device = device_of(r, told);
  const std::lock_guard lock(r.mutex);
  Physical& physical = r.inventory.add_physical(own, 0, device, Origin::kImported);
  add_handle(physical, told);
  physical.shared = true;
  physical.retained_fd = move_high(kept.release());
  return &physical;
}

void release_imported(Runtime& r, Handle handle) {
  const auto found = r.imported_handles.find(handle);
  if (found != r.imported_handles.end() && --found->second == 0) r.imported_handles.erase(found);
}

}  // namespace

Result create_tracked(Runtime& r, Handle* handle, std::size_t size_bytes, const Asked& asked,
                      unsigned long long flags, RealCall driver) {
  if (!asked.trackable) return driver();
  Handle own = 0;
  flush_deferred_frees(r);
  const int device = device_of(r, asked);
  Result result = r.driver.create_as(&own, size_bytes, asked, flags);
  if (result == Result::kOutOfMemory && asked.host_node < 0 && make_room(r, device, size_bytes)) {
    result = r.driver.create_as(&own, size_bytes, asked, flags);
  }
  const bool tracked = result == Result::kSuccess;
  if (!tracked) result = driver();
  const std::lock_guard lock(r.mutex);
  if (tracked) {
    Physical& physical = r.inventory.add_physical(own, size_bytes, device, Origin::kApplication);
    add_handle(physical, asked);
    *handle = Inventory::to_handle(physical);
  } else if (result == Result::kSuccess) {
    ++r.fallbacks;
  }
  return result;
}

Result release_handle(Runtime& r, Handle handle, RealCall driver) {
  {
    const std::lock_guard lock(r.mutex);
    if (Physical* physical = r.inventory.from_handle(handle)) {
      --physical->references;
      release_if_unused(r, *physical);
      return Result::kSuccess;
    }
    if (Inventory::is_our_handle(handle)) return Result::kInvalidValue;
    release_imported(r, handle);
  }
  return driver();
}

Result map_handle(Runtime& r, Address address, std::size_t size_bytes, std::size_t offset_bytes,
                  Handle handle, FunctionRef<Result(Handle)> driver) {
  const std::lock_guard lock(r.mutex);
  Physical* physical = r.inventory.from_handle(handle);
  if (physical == nullptr && Inventory::is_our_handle(handle)) return Result::kInvalidValue;
  const Result result = driver(physical == nullptr ? handle : physical->handle);
  if (result != Result::kSuccess) return result;
  if (physical != nullptr) {
    // The driver maps only whole allocations (measured with driver 580).
    if (physical->size_bytes == 0) r.inventory.set_size(*physical, offset_bytes + size_bytes);
    r.inventory.add_mapping(address, size_bytes, offset_bytes, *physical);
  } else if (r.imported_handles.contains(handle)) {
    r.imported_mappings[address] = size_bytes;
  }
  return result;
}

Result unmap_range(Runtime& r, Address address, std::size_t size_bytes, RealCall driver) {
  const std::lock_guard lock(r.mutex);
  if (touches_plain(r.inventory, address, size_bytes)) return Result::kInvalidValue;
  const Result result = driver();
  if (result != Result::kSuccess) return result;
  for_each_mapping(r.inventory, address, size_bytes, [&](const Mapping& mapping) {
    const Mapping taken = r.inventory.remove_mapping(mapping.address);
    release_if_unused(r, *taken.physical);
  });
  std::erase_if(r.imported_mappings,
                [&](const auto& imported) { return imported.first - address < size_bytes; });
  return result;
}

Result free_range(Runtime& r, Address address, std::size_t size_bytes, RealCall driver) {
  {
    const std::lock_guard lock(r.mutex);
    if (touches_plain(r.inventory, address, size_bytes)) return Result::kInvalidValue;
  }
  return driver();
}

Result change_access(Runtime& r, Address address, std::size_t size_bytes, RealCall driver,
                     std::size_t count, FunctionRef<Access(std::size_t)> access_at) {
  const std::lock_guard lock(r.mutex);
  if (touches_plain(r.inventory, address, size_bytes)) return Result::kInvalidValue;
  const Result result = driver();
  if (result != Result::kSuccess) return result;
  for_each_mapping(r.inventory, address, size_bytes, [&](Mapping& mapping) {
    for (std::size_t i = 0; i < count; ++i) remember_access(mapping, access_at(i));
  });
  return result;
}

Result export_handle(Runtime& r, Handle handle, unsigned handle_type, int* fd, RealCall driver) {
  const std::lock_guard lock(r.mutex);
  Physical* physical = r.inventory.from_handle(handle);
  if (physical == nullptr) {
    return Inventory::is_our_handle(handle) ? Result::kInvalidValue : driver();
  }
  if ((physical->asked.handle_types & handle_type) == 0 || fd == nullptr) {
    return Result::kInvalidValue;
  }
  const Result result = share(r, *physical);
  return result == Result::kSuccess ? export_descriptor(r, *physical, fd) : result;
}

Handle imported(Runtime& r, Handle own, int fd) {
  if (fd >= 0) {
    if (const Physical* physical = track_imported(r, own, fd)) {
      return Inventory::to_handle(*physical);
    }
  }
  const std::lock_guard lock(r.mutex);
  ++r.imported_handles[own];
  return own;
}

Result asked_of(Runtime& r, Handle handle, Asked* asked, RealCall driver) {
  const std::lock_guard lock(r.mutex);
  const Physical* physical = r.inventory.from_handle(handle);
  if (physical == nullptr) {
    return Inventory::is_our_handle(handle) ? Result::kInvalidValue : driver();
  }
  if (asked == nullptr) return Result::kInvalidValue;
  *asked = physical->asked;
  return Result::kSuccess;
}

Result retain_handle(Runtime& r, Handle* handle, Address address, RealCall driver) {
  const std::lock_guard lock(r.mutex);
  const Mapping* mapping = r.inventory.find_mapping(address);
  if (mapping != nullptr) {
    if (mapping->holds_plains() || handle == nullptr) return Result::kInvalidValue;
    ++mapping->physical->references;
    *handle = Inventory::to_handle(*mapping->physical);
    return Result::kSuccess;
  }
  const Result result = driver();
  if (result != Result::kSuccess) return result;
  const auto known = r.imported_handles.find(*handle);
  if (known != r.imported_handles.end()) ++known->second;
  return result;
}

}  // namespace gcr::preload

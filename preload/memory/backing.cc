#include "preload/memory/backing.h"

#include <fcntl.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "preload/descriptors.h"
#include "preload/gate.h"
#include "preload/log.h"
#include "preload/memory/capture.h"
#include "preload/memory/contexts.h"
#include "preload/memory/room.h"

namespace gcr::preload {
namespace {

/// From this number of buffers on, medium allocations come from arenas, because detach and attach
/// take time for each buffer. Below it, freed memory is returned to the driver at once.
constexpr std::uint32_t kManyBuffers = 128;

enum class Fit { kTaken, kNoRoom, kElsewhere };

/// Allocates from the existing arenas.
Fit allocate_range(Runtime& r, Context* context, std::size_t requested_bytes, Address* address) {
  const std::lock_guard lock(r.mutex);
  if (any_capture(r)) return Fit::kElsewhere;
  const Address taken = r.arenas.allocate(context, requested_bytes);
  if (taken == 0) {
    const bool wanted =
        requested_bytes < kSmallestMediumBytes || r.inventory.tracked_count() >= kManyBuffers;
    return wanted ? Fit::kNoRoom : Fit::kElsewhere;
  }
  r.inventory.add_plain(taken, requested_bytes);
  *address = taken;
  return Fit::kTaken;
}

/// Adds an arena for `context`, of the best size or, if memory is short, of the smallest.
bool add_arena(Runtime& r, Context* context, int device, std::size_t requested_bytes) {
  const ArenaKind& kind = kind_of(requested_bytes);
  std::size_t wanted_bytes = 0;
  {
    const std::lock_guard lock(r.mutex);
    wanted_bytes = r.arenas.next_size_bytes(context, requested_bytes, r.inventory.tracked_bytes());
  }
  Backing backing;
  if (!make_backing(r, device, wanted_bytes, &backing) &&
      (wanted_bytes <= kind.smallest_bytes ||
       !make_backing(r, device, kind.smallest_bytes, &backing))) {
    return false;
  }
  const std::lock_guard lock(r.mutex);
  const Mapping& mapping = add_backing_of(r, context, device, backing);
  r.arenas.add(Arena(kind, mapping.physical->id, context, backing.address, backing.size_bytes));
  return true;
}

/// Allocates from an arena, and adds one if necessary. False: there is no memory, or the allocation
/// does not belong in an arena. During a capture always false: the driver then refuses the call
/// itself, and the capture is not disturbed.
bool allocate_in_arena(Runtime& r, Context* context, int device, std::size_t requested_bytes,
                       Address* address) {
  Fit fit = allocate_range(r, context, requested_bytes, address);
  if (fit != Fit::kNoRoom) return fit == Fit::kTaken;
  const std::lock_guard growing(r.growth);
  while ((fit = allocate_range(r, context, requested_bytes, address)) == Fit::kNoRoom) {
    if (!add_arena(r, context, device, requested_bytes)) return false;
  }
  return fit == Fit::kTaken;
}

bool allocate_in(Runtime& r, Context* context, int device, std::size_t requested_bytes,
                 Address* address) {
  if (requested_bytes <= kLargestMediumBytes &&
      allocate_in_arena(r, context, device, requested_bytes, address)) {
    return true;
  }
  if (requested_bytes < kSmallestMediumBytes) return false;
  Backing backing;
  if (!make_backing(r, device, requested_bytes, &backing)) return false;
  const std::lock_guard lock(r.mutex);
  add_backing_of(r, context, device, backing);
  r.inventory.add_plain(backing.address, requested_bytes);
  *address = backing.address;
  return true;
}

/// Frees the addresses of an unmapped mapping; if it shares a reservation with other mappings, only
/// the last one frees it.
Result free_addresses(Runtime& r, const Mapping& mapping) {
  if (mapping.reservation == nullptr) {
    return r.driver.free_addresses(mapping.address, mapping.size_bytes);
  }
  Reservation whole = {};
  {
    const std::lock_guard lock(r.mutex);
    if (--mapping.reservation->mappings != 0) return Result::kSuccess;
    whole = *mapping.reservation;
    r.reservations.erase(whole.address);
  }
  return r.driver.free_addresses(whole.address, whole.size_bytes);
}

}  // namespace

bool current_context(Runtime& r, Context** context, int* device) {
  if (r.driver.current(context) != Result::kSuccess || *context == nullptr) return false;
  if (r.driver.current_device(device) != Result::kSuccess) return false;
  *context = owner_of(r, *context);
  return *device >= 0 && *device < kMaxDevices;
}

int device_of(Runtime& r, const Asked& asked) {
  Context* context = nullptr;
  int device = 0;
  if (asked.device >= 0 && asked.device < kMaxDevices) {
    device = asked.device;
  } else if (!current_context(r, &context, &device)) {
    device = 0;
  }
  device_facts(r, device);
  return device;
}

DeviceFacts device_facts(Runtime& r, int device) {
  {
    const std::lock_guard lock(r.mutex);
    if (r.devices[device].asked) return r.devices[device];
  }
  const DeviceFacts facts = r.driver.facts(device);
  const std::lock_guard lock(r.mutex);
  if (!r.devices[device].asked) r.devices[device] = facts;
  return r.devices[device];
}

bool create_memory(Runtime& r, int device, std::size_t size_bytes, Handle* handle) {
  const DeviceFacts facts = device_facts(r, device);
  const Result result = r.driver.create(handle, size_bytes, device, facts.rdma_capable);
  if (result == Result::kSuccess || result == Result::kOutOfMemory || !facts.rdma_capable) {
    return result == Result::kSuccess;
  }
  if (r.driver.create(handle, size_bytes, device, false) != Result::kSuccess) return false;
  log_line(
      "device %d: memory for RDMA cannot be exported (driver result %u); using ordinary memory",
      device, number(result));
  const std::lock_guard lock(r.mutex);
  r.devices[device].rdma_capable = false;
  return true;
}

Result map_at(Runtime& r, Address address, std::size_t size_bytes, Handle handle, int device) {
  Result result = r.driver.map(address, size_bytes, 0, handle);
  if (result != Result::kSuccess) return result;
  const Access access{.id = device, .rights = Rights::kReadWrite};
  result = r.driver.set_access(address, size_bytes, {&access, 1});
  if (result != Result::kSuccess) r.driver.unmap(address, size_bytes);
  return result;
}

Address map_whole(Runtime& r, Handle handle, std::size_t size_bytes, std::size_t alignment_bytes,
                  int device) {
  Address address = 0;
  if (r.driver.reserve(&address, size_bytes, alignment_bytes) != Result::kSuccess) {
    return 0;
  }
  if (map_at(r, address, size_bytes, handle, device) == Result::kSuccess) return address;
  r.driver.free_addresses(address, size_bytes);
  return 0;
}

void note_driver_allocation(Runtime& r, Address address, std::size_t size_bytes, bool managed) {
  const std::lock_guard lock(r.mutex);
  r.inventory.add_untracked(address, size_bytes, managed);
  if (!managed) {
    ++r.fallbacks;
    log_line("%zu bytes at 0x%llx are not backed: the driver allocated them", size_bytes, address);
  }
}

void note_variable(Runtime& r, Address address) {
  if (!r.driver.is_managed(address)) return;
  const std::lock_guard lock(r.mutex);
  if (std::ranges::find(r.managed_variables, address) == r.managed_variables.end()) {
    r.managed_variables.push_back(address);
  }
}

bool has_managed_memory(Runtime& r) {
  // No call reports which variables were unloaded with a module.
  if (!r.detached && !gate::is_closed()) {
    std::erase_if(r.managed_variables,
                  [&r](Address address) { return !r.driver.is_managed(address); });
  }
  return r.inventory.managed_count() > 0 || !r.managed_variables.empty();
}

bool is_backed(Runtime& r, const Mapping& mapping, Address address) {
  const Plain* plain = r.inventory.find_plain(address);
  return plain != nullptr && plain->address == address &&
         mapping.physical->origin == Origin::kLibrary;
}

bool release_unused(Runtime& r, bool all) {
  bool found = false;
  for (;; found = true) {
    std::optional<Mapping> mapping;
    {
      const std::lock_guard lock(r.mutex);
      if (any_capture(r)) return found;
      if (const Address arena = r.arenas.remove_empty(all)) {
        mapping = r.inventory.remove_mapping(arena);
      } else {
        mapping = remove_unused_stretch(r, all);
      }
    }
    if (!mapping.has_value()) return found;
    unmap_and_release(r, *mapping);
  }
}

bool make_backing(Runtime& r, int device, std::size_t wanted_bytes, Backing* backing) {
  const DeviceFacts facts = device_facts(r, device);
  const std::size_t unit = facts.granularity_bytes;
  if (!facts.can_back || wanted_bytes > SIZE_MAX - unit) return false;
  backing->size_bytes = (wanted_bytes + unit - 1) / unit * unit;
  bool created = create_memory(r, device, backing->size_bytes, &backing->handle);
  if (!created && release_unused(r, true)) {
    created = create_memory(r, device, backing->size_bytes, &backing->handle);
  }
  if (!created) return false;
  backing->address = map_whole(r, backing->handle, backing->size_bytes, unit, device);
  if (backing->address == 0) r.driver.release(backing->handle);
  return backing->address != 0;
}

Mapping& add_backing(Runtime& r, int device, const Backing& backing) {
  Physical& physical =
      r.inventory.add_physical(backing.handle, backing.size_bytes, device, Origin::kLibrary);
  Mapping& mapping = r.inventory.add_mapping(backing.address, backing.size_bytes, 0, physical);
  mapping.readers = mapping.writers = std::uint64_t{1} << device;
  return mapping;
}

Mapping& add_backing_of(Runtime& r, Context* context, int device, const Backing& backing) {
  note_context(r, context, device);
  Mapping& mapping = add_backing(r, device, backing);
  mapping.context = context;
  if (!r.peers.empty() || r.copiers != 0) apply_access(r, mapping);
  return mapping;
}

bool allocate_backed(Runtime& r, std::size_t requested_bytes, Address* address) {
  Context* context = nullptr;
  int device = 0;
  if (requested_bytes == 0 || !current_context(r, &context, &device)) return false;
  return allocate_in(r, context, device, requested_bytes, address) ||
         (make_room(r, device, requested_bytes) &&
          allocate_in(r, context, device, requested_bytes, address));
}

Result synchronize(Runtime& r, Context* context) {
  Context* current = nullptr;
  if (r.driver.current(&current) == Result::kSuccess && current == context) {
    return r.driver.synchronize();
  }
  const CurrentContext inside(r, context);
  return inside.result() == Result::kSuccess ? r.driver.synchronize() : inside.result();
}

Result export_descriptor(Runtime& r, const Physical& physical, int* fd) {
  if (physical.retained_fd >= 0) {
    *fd = ::fcntl(physical.retained_fd, F_DUPFD_CLOEXEC, 0);
    return *fd >= 0 ? Result::kSuccess : Result::kOperatingSystem;
  }
  return r.driver.export_descriptor(fd, physical.handle);
}

Result share(Runtime& r, Physical& physical) {
  if (physical.retained_fd < 0) {
    int fd = -1;
    const Result result = export_descriptor(r, physical, &fd);
    if (result != Result::kSuccess) return result;
    physical.retained_fd = move_high(fd);
  }
  physical.shared = true;
  return Result::kSuccess;
}

void release_if_unused(Runtime& r, Physical& physical) {
  if (physical.references != 0 || physical.mappings != 0) return;
  if (physical.handle != 0) r.driver.release(physical.handle);
  close_descriptors(physical);
  r.inventory.remove_physical(physical);
}

Freed remove_from_inventory(Runtime& r, Mapping& mapping, Address address) {
  Freed freed;
  freed.context = mapping.context;
  if (const Arena* arena = r.arenas.find(address)) {
    freed.range = {arena->number(), address, r.inventory.find_plain(address)->requested_bytes};
    r.inventory.remove_plain(address);
    return freed;
  }
  r.inventory.remove_plain(address);
  if (!r.inventory.has_plains(mapping)) freed.mapping = r.inventory.remove_mapping(mapping.address);
  return freed;
}

void release(Runtime& r, const Freed& freed) {
  if (freed.mapping.physical != nullptr) {
    unmap_and_release(r, freed.mapping);
    return;
  }
  {
    const std::lock_guard lock(r.mutex);
    if (!r.arenas.release(freed.range)) return;
  }
  release_unused(r, false);
}

void unmap_and_release(Runtime& r, const Mapping& mapping) {
  const Result unmapped = r.driver.unmap(mapping.address, mapping.size_bytes);
  const Result freed = free_addresses(r, mapping);
  if (unmapped != Result::kSuccess || freed != Result::kSuccess) {
    log_line("cannot release %zu bytes at 0x%llx: unmap %u, free address %u", mapping.size_bytes,
             mapping.address, number(unmapped), number(freed));
  }
  const std::lock_guard lock(r.mutex);
  release_if_unused(r, *mapping.physical);
}

void flush_deferred_frees(Runtime& r) {
  std::vector<DeferredFree> ready;
  {
    const std::lock_guard lock(r.mutex);
    if (r.deferred_frees.empty() || any_capture(r)) return;
    const auto first_ready = std::partition(
        r.deferred_frees.begin(), r.deferred_frees.end(), [&](const DeferredFree& deferred) {
          return deferred.done != nullptr && r.driver.query(deferred.done) == Result::kNotReady;
        });
    ready.assign(std::make_move_iterator(first_ready),
                 std::make_move_iterator(r.deferred_frees.end()));
    r.deferred_frees.erase(first_ready, r.deferred_frees.end());
  }
  Context* idle = nullptr;
  for (const DeferredFree& deferred : ready) {
    Context* const context = deferred.freed.context;
    if (deferred.done != nullptr) {
      r.driver.destroy_event(deferred.done);
    } else if (context != idle) {
      synchronize(r, context);
      idle = context;
    }
    release(r, deferred.freed);
  }
}

Result apply_access(Runtime& r, Mapping& mapping) {
  std::uint64_t wanted = std::uint64_t{1} << mapping.physical->device;
  if (mapping.physical->origin == Origin::kImported) wanted = mapping.writers;
  if (mapping.pool != nullptr) wanted = mapping.pool->accessors;
  if (mapping.holds_plains() && mapping.pool == nullptr) wanted |= r.copiers;
  for (const PeerAccess& peer : r.peers) {
    if (peer.owner == mapping.context) wanted |= std::uint64_t{1} << peer.accessor_device;
  }
  Access changes[kMaxDevices];
  std::size_t count = 0;
  for (int device = 0; device < kMaxDevices; ++device) {
    const std::uint64_t bit = std::uint64_t{1} << device;
    if ((wanted & bit) == (mapping.writers & bit)) continue;
    changes[count++] = {.id = device,
                        .rights = (wanted & bit) != 0 ? Rights::kReadWrite : Rights::kNone};
  }
  if (count == 0) return Result::kSuccess;
  const Result result = r.driver.set_access(mapping.address, mapping.size_bytes, {changes, count});
  if (result == Result::kSuccess) {
    mapping.readers = mapping.writers = wanted;
  } else {
    log_line("cannot change the access of peer devices to 0x%llx: driver result %u",
             mapping.address, number(result));
  }
  return result;
}

}  // namespace gcr::preload

#include "preload/memory/plain.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "preload/memory/backing.h"
#include "preload/memory/capture.h"
#include "preload/memory/pools.h"
#include "src/base/units.h"

namespace gcr::preload {
namespace {

/// The alignment of pitches on the current device, which is the pitch of a row of one element.
/// Queried once per device; 0 if that is not possible now.
std::size_t pitch_alignment(Runtime& r) {
  Context* context = nullptr;
  int device = 0;
  if (!current_context(r, &context, &device)) return 0;
  {
    const std::lock_guard lock(r.mutex);
    if (r.devices[device].pitch_alignment_bytes != 0) {
      return r.devices[device].pitch_alignment_bytes;
    }
    if (any_capture(r)) return 0;
  }
  std::size_t pitch_bytes = 0;
  if (r.driver.smallest_pitch(&pitch_bytes) != Result::kSuccess) return 0;
  const std::lock_guard lock(r.mutex);
  r.devices[device].pitch_alignment_bytes = pitch_bytes;
  return pitch_bytes;
}

/// Records registered host memory; returns whether it is new.
bool note_registered(Runtime& r, const void* at, std::size_t size_bytes) {
  const std::lock_guard lock(r.mutex);
  const auto [entry, is_new] =
      r.registered_memory.try_emplace(reinterpret_cast<std::uintptr_t>(at), size_bytes);
  if (entry->second < size_bytes) entry->second = size_bytes;
  return is_new;
}

void forget_registered(Runtime& r, const void* at) {
  const std::lock_guard lock(r.mutex);
  r.registered_memory.erase(reinterpret_cast<std::uintptr_t>(at));
}

bool reaches(Runtime& r, Address address, const Context* accessor, int device) {
  const Mapping* mapping = r.inventory.find_mapping(address);
  if (mapping == nullptr || mapping->pool != nullptr || mapping->physical->device == device) {
    return true;
  }
  return std::ranges::any_of(r.peers, [&](const PeerAccess& peer) {
    return peer.owner == mapping->context && peer.accessor == accessor;
  });
}

}  // namespace

bool allocate_plain(Runtime& r, Address* address, std::size_t size_bytes) {
  flush_deferred_frees(r);
  return allocate_backed(r, size_bytes, address);
}

bool allocate_pitched(Runtime& r, Address* address, std::size_t* pitch_bytes,
                      std::size_t width_bytes, std::size_t height) {
  flush_deferred_frees(r);
  constexpr std::size_t kWidest = std::size_t{1} << 31;
  if (width_bytes == 0 || width_bytes >= kWidest || height == 0) return false;
  if (height > SIZE_MAX / (2 * kWidest)) return false;
  const std::size_t alignment_bytes = pitch_alignment(r);
  if (alignment_bytes == 0) return false;
  const std::size_t pitch = round_up(width_bytes, alignment_bytes);
  if (!allocate_backed(r, pitch * height, address)) return false;
  *pitch_bytes = pitch;
  return true;
}

std::optional<Result> free_plain(Runtime& r, Address address) {
  if (const std::optional<Result> of_pool = free_unused(r, address)) return *of_pool;
  Freed freed;
  {
    const std::lock_guard lock(r.mutex);
    Mapping* mapping = r.inventory.find_mapping(address);
    if (mapping == nullptr || !mapping->holds_plains()) {
      r.inventory.remove_untracked(address);
      return std::nullopt;
    }
    if (!is_backed(r, *mapping, address)) return Result::kInvalidValue;
    freed = remove_from_inventory(r, *mapping, address);
    if (any_capture(r)) {
      r.deferred_frees.push_back({std::move(freed), nullptr});
      return Result::kSuccess;
    }
  }
  const Result result = synchronize(r, freed.context);
  release(r, freed);
  flush_deferred_frees(r);
  return result;
}

std::optional<PlainRange> plain_range(Runtime& r, Address address) {
  Context* context = nullptr;
  int device = 0;
  if (current_context(r, &context, &device)) {  // else the driver refuses the call
    const std::lock_guard lock(r.mutex);
    if (const Plain* plain = r.inventory.find_plain(address)) {
      return PlainRange{Result::kSuccess, plain->address, plain->requested_bytes,
                        reaches(r, address, context, device)};
    }
    const Mapping* mapping = r.inventory.find_mapping(address);
    if (mapping != nullptr && mapping->holds_plains()) return PlainRange{Result::kNotFound};
  }
  flush_deferred_frees(r);
  return std::nullopt;
}

std::optional<View> view_of(Runtime& r, Address address) {
  const std::lock_guard lock(r.mutex);
  const Mapping* mapping = r.inventory.find_mapping(address);
  if (mapping == nullptr) return std::nullopt;
  View view;
  view.device = mapping->physical->device;
  view.on_host = mapping->physical->host_node >= 0;
  if (!mapping->holds_plains()) {
    view.handle_types = mapping->physical->asked.handle_types;
    return view;
  }
  const Plain* plain = r.inventory.find_plain(address);
  view.plain = plain != nullptr;
  view.unused = plain == nullptr;
  if (plain != nullptr) view.allocation = *plain;
  view.mapping = mapping->address;
  view.mapped_bytes = mapping->size_bytes;
  const Arena* arena = r.arenas.find(address);
  if (plain != nullptr && arena != nullptr && &arena->kind() == &kMediumArenas) {
    view.mapping = plain->address;  // reported as if the allocation had its own mapping
    view.mapped_bytes = arena->whole_units(plain->requested_bytes);
  }
  view.context = mapping->context;
  if (mapping->pool != nullptr) view.pool = mapping->pool->handle;
  view.pooled = mapping->pool != nullptr;
  return view;
}

bounds::Range range_around(Runtime& r, Address address) {
  constexpr Address kUnitBytes = 512;
  const std::lock_guard lock(r.mutex);
  bounds::Range range{bounds::current_tag(), 0, bounds::kUnlimited, bounds::kUnlimited};
  const Mapping* mapping = r.inventory.find_mapping(address);
  if (mapping == nullptr) {
    r.inventory.gap_around(address, &range.begin, &range.end);
    return range;
  }
  range.begin = mapping->address;
  range.end = mapping->address + mapping->size_bytes;
  if (!mapping->holds_plains() || mapping->pool != nullptr) return range;
  const Plain* plain = r.inventory.find_plain(address / kUnitBytes * kUnitBytes);
  if (plain == nullptr) return {range.tag, address, address + 1, 0};
  range.begin = plain->address;
  range.end = range.limit = plain->address + round_up(plain->requested_bytes, kUnitBytes);
  return range;
}

void set_sync_memops(Runtime& r, Address address, bool value) {
  const std::lock_guard lock(r.mutex);
  if (Plain* plain = r.inventory.find_plain(address)) plain->sync_memops = value;
}

Address unknown_address() {
  static const char nothing = 0;
  return reinterpret_cast<Address>(&nothing);
}

void note_foreign(Runtime& r, Address address) {
  const std::lock_guard lock(r.mutex);
  if (Mapping* mapping = r.inventory.find_mapping(address)) mapping->physical->foreign = true;
}

Result register_host_memory(Runtime& r, const void* at, std::size_t size_bytes, RealCall driver) {
  const bool is_new = note_registered(r, at, size_bytes);
  const Result result = driver();
  if (is_new && result != Result::kSuccess && result != Result::kHostMemoryAlreadyRegistered) {
    forget_registered(r, at);
  }
  return result;
}

Result unregister_host_memory(Runtime& r, const void* at, RealCall driver) {
  const Result result = driver();
  if (result == Result::kSuccess) forget_registered(r, at);
  return result;
}

}  // namespace gcr::preload

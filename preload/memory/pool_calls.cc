#include "preload/memory/pool_calls.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include "preload/memory/backing.h"
#include "preload/memory/pools.h"

namespace gcr::preload {
namespace {

bool is_captured(Runtime& r, Stream* stream) {
  const std::lock_guard lock(r.mutex);
  return refuse_captured(r, stream) != Result::kSuccess;
}

/// Frees, in a stream's order, memory that was allocated without one: it is released once the
/// stream has passed this point. Nullopt if the address is not backed.
std::optional<Result> free_later(Runtime& r, Address address, Stream* stream) {
  const std::lock_guard lock(r.mutex);
  Mapping* mapping = r.inventory.find_mapping(address);
  if (mapping == nullptr || !is_backed(r, *mapping, address)) return std::nullopt;
  if (const Result captured = refuse_captured(r, stream); captured != Result::kSuccess) {
    return captured;
  }
  Event* done = nullptr;
  Result result = r.driver.create_event(&done);
  if (result != Result::kSuccess) return result;
  result = r.driver.record(done, stream);
  if (result != Result::kSuccess) {
    r.driver.destroy_event(done);
    return result;
  }
  r.deferred_frees.push_back({remove_from_inventory(r, *mapping, address), done});
  return Result::kSuccess;
}

void add(void* value, std::uint64_t more) { *static_cast<std::uint64_t*>(value) += more; }

}  // namespace

Result allocate_async(Runtime& r, Address* address, std::size_t size_bytes, PoolHandle* pool,
                      Stream* stream, RealCall driver) {
  if (const auto done = allocate_in_order(r, address, size_bytes, pool, stream)) return *done;
  const Result result = driver();
  if (result != Result::kSuccess) return result;
  if (pool != nullptr && pool_of(r, pool) == nullptr)
    note_unrestorable_pool(r);  // the pool has no device
  if (is_captured(r, stream)) {
    note_graph_memory(r);
  } else {
    note_driver_allocation(r, *address, size_bytes, false);
  }
  return result;
}

Result free_async(Runtime& r, Address address, Stream* stream, RealCall driver) {
  if (const auto done = free_in_order(r, address, stream)) return *done;
  if (const auto done = free_later(r, address, stream)) return *done;
  const Result result = driver();
  if (result == Result::kSuccess && !is_captured(r, stream)) {
    const std::lock_guard lock(r.mutex);
    r.inventory.remove_untracked(address);
  }
  return result;
}

void note_graph_memory(Runtime& r) {
  const std::lock_guard lock(r.mutex);
  r.pools.any_graph_memory = true;
}

void note_unrestorable_pool(Runtime& r) {
  const std::lock_guard lock(r.mutex);
  r.has_unrestorable_pool = true;
}

void attribute_was_set(Runtime& r, PoolHandle* pool, PoolAttribute attribute, const void* value) {
  Pool* const known = pool_of(r, pool);
  if (known == nullptr) return;
  const std::lock_guard lock(r.mutex);
  switch (attribute) {
    case PoolAttribute::kReuseAllowOpportunistic:
      known->behaviour.opportunistic = *static_cast<const int*>(value) != 0;
      break;
    case PoolAttribute::kReuseAllowInternalDependencies:
      known->behaviour.internal_dependencies = *static_cast<const int*>(value) != 0;
      break;
    case PoolAttribute::kReleaseThreshold:
      known->behaviour.threshold_bytes = *static_cast<const std::uint64_t*>(value);
      break;
    case PoolAttribute::kReservedHigh:
      known->most_reserved_bytes = known->reserved_bytes;
      break;
    case PoolAttribute::kUsedHigh:
      known->most_used_bytes = known->used_bytes;
      break;
    default:
      break;
  }
}

void add_to_attribute(Runtime& r, PoolHandle* pool, PoolAttribute attribute, void* value) {
  const Pool* const known = pool_of(r, pool);
  if (known == nullptr) return;
  const std::lock_guard lock(r.mutex);
  switch (attribute) {
    case PoolAttribute::kReservedCurrent:
      return add(value, known->reserved_bytes);
    case PoolAttribute::kReservedHigh:
      return add(value, known->most_reserved_bytes);
    case PoolAttribute::kUsedCurrent:
      return add(value, known->used_bytes);
    case PoolAttribute::kUsedHigh:
      return add(value, known->most_used_bytes);
    default:
      return;
  }
}

void current_pools_changed(Runtime& r) {
  const std::lock_guard lock(r.mutex);
  std::ranges::fill(r.pools.current, nullptr);
}

}  // namespace gcr::preload

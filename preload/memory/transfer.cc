// Implements preload/runtime.h for all runtimes that have started.
//
// A detach unmaps all mappings of all runtimes, or maps them again if one fails; then it releases
// the physical memory, of which the agent holds descriptors by then. The inventory keeps ids,
// addresses and access rights. An attach imports the offered descriptors and maps them at the same
// addresses.
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "preload/descriptors.h"
#include "preload/door.h"
#include "preload/function_table.h"
#include "preload/gate.h"
#include "preload/inherited.h"
#include "preload/memory/backing.h"
#include "preload/memory/bounds.h"
#include "preload/memory/capture.h"
#include "preload/memory/contexts.h"
#include "preload/memory/ipc.h"
#include "preload/memory/runtime.h"
#include "preload/memory/stack_limits.h"
#include "preload/runtime.h"

namespace gcr::preload {
namespace {

/// Guards the variables below; taken before the mutexes of the runtimes.
constinit std::mutex g_mutex;
/// The runtimes by number; null before they start.
constinit Runtime* g_started[kMaxRuntimes] = {};
/// Descriptors that were exported and not yet sent.
constinit int g_loose[door::kMaxEntries] = {};
constinit std::size_t g_loose_count = 0;

/// Calls `function` for each runtime that has started, in the order of numbers, below `end`. The
/// caller holds g_mutex.
template <class Function>
void for_each_runtime(const Function& function, std::size_t end = kMaxRuntimes) {
  for (Runtime* const runtime : std::span(g_started).first(end)) {
    if (runtime != nullptr) function(*runtime);
  }
}

void lock_all() {
  g_mutex.lock();
  for_each_runtime([](Runtime& r) { r.mutex.lock(); });
}

void unlock_all() {
  for_each_runtime([](Runtime& r) { r.mutex.unlock(); });
  g_mutex.unlock();
}

/// Holds g_mutex and the mutexes of all runtimes while it lives.
class AllLocked {
 public:
  AllLocked() { lock_all(); }
  ~AllLocked() { unlock_all(); }
  AllLocked(const AllLocked&) = delete;
  AllLocked& operator=(const AllLocked&) = delete;
};

}  // namespace

bool start(Runtime& runtime) {
  {
    const std::lock_guard lock(g_mutex);
    g_started[runtime.number] = &runtime;
  }
  return start_door();
}

}  // namespace gcr::preload

namespace gcr::preload::runtime {
namespace {

using door::Outcome;

Ending driver_failed(Result result, std::uint64_t id) {
  return {Outcome::kDriver, number(result), id};
}

bool any_detached() {
  bool detached = false;
  for_each_runtime([&](const Runtime& r) { detached = detached || r.detached; });
  return detached;
}

/// The allocation with that id, of any runtime; null if there is none.
Physical* find_physical(std::uint64_t id) {
  const std::uint64_t runtime = Inventory::runtime_of(id);
  if (runtime >= kMaxRuntimes || g_started[runtime] == nullptr) return nullptr;
  return g_started[runtime]->inventory.find_physical(id);
}

std::uint32_t blockers_of(Runtime& r) {
  std::uint32_t blockers = 0;
  if (has_managed_memory(r)) blockers |= door::kManagedMemory;
  if (r.driver_ipc_exported) blockers |= door::kIpcExported;
  if (r.driver_ipc_imported > 0) blockers |= door::kIpcImported;
  if (!r.imported_handles.empty() || !r.imported_mappings.empty()) {
    blockers |= door::kForeignHandles;
  }
  for (const auto& [id, physical] : r.inventory.physicals()) {
    if (physical.foreign) blockers |= door::kForeignHandles;
  }
  if (!r.captures.empty() && any_capture(r)) blockers |= door::kStreamCapturing;
  if (r.has_unrestorable_pool) blockers |= door::kLostPools;
  if (r.profiled.load(std::memory_order_relaxed)) blockers |= door::kProfiled;
  return blockers;
}

door::DoorEntry entry_of(const Runtime& r, const Physical& physical) {
  door::DoorEntry entry{};
  entry.id = physical.id;
  entry.size_bytes = physical.size_bytes;
  entry.device_ordinal = static_cast<std::uint32_t>(physical.device);
  entry.flags =
      physical.origin == Origin::kLibrary ? door::kMappedByLibrary : door::kMappedByApplication;
  if (physical.shared) entry.flags |= door::kShared;
  entry.host_node = physical.host_node;
  ::memcpy(entry.device_uuid, r.devices[physical.device].uuid.bytes, sizeof(entry.device_uuid));
  return entry;
}

/// Bytes that graphs have reserved on all devices, from the driver; the last known value while the
/// driver must not be called.
std::uint64_t graph_bytes(Runtime& r) {
  if (!r.pools.any_graph_memory || r.detached || gate::is_closed()) return r.pools.graph_bytes;
  std::uint64_t asked = 0;
  r.pools.graph_bytes = 0;
  for (const KnownContext& known : r.contexts) {
    const std::uint64_t bit = std::uint64_t{1} << known.device;
    std::uint64_t bytes = 0;
    if ((asked & bit) == 0 && r.driver.graph_memory(known.device, &bytes) == Result::kSuccess) {
      r.pools.graph_bytes += bytes;
    }
    asked |= bit;
  }
  return r.pools.graph_bytes;
}

void add_to(door::Summary& summary, Runtime& r) {
  summary.generation += r.inventory.generation();
  summary.tracked_bytes += r.inventory.tracked_bytes();
  summary.untracked_bytes += r.inventory.untracked_bytes() + graph_bytes(r);
  summary.allocations += r.inventory.tracked_count();
  summary.contexts += static_cast<std::uint32_t>(r.contexts.size());
  summary.blockers |= blockers_of(r);
  summary.fallbacks += r.fallbacks;
  summary.detached |= r.detached ? 1 : 0;
  summary.lowered_stacks += lowered_stack_limits(r);
}

/// Maps one range at its address again, with the same access.
Result remap(Runtime& r, const Mapping& mapping) {
  Result result = r.driver.map(mapping.address, mapping.size_bytes, mapping.offset_bytes,
                               mapping.physical->handle);
  if (result != Result::kSuccess) return result;
  Access accesses[kMaxDevices];
  std::size_t count = 0;
  for (int device = 0; device < kMaxDevices; ++device) {
    const std::uint64_t bit = std::uint64_t{1} << device;
    if ((mapping.readers & bit) == 0) continue;
    const bool writes = (mapping.writers & bit) != 0;
    accesses[count++] = {.id = device, .rights = writes ? Rights::kReadWrite : Rights::kRead};
  }
  if (count > 0) {
    result = r.driver.set_access(mapping.address, mapping.size_bytes, {accesses, count});
  }
  if (result == Result::kSuccess && !mapping.other_access.empty()) {
    result = r.driver.set_access(mapping.address, mapping.size_bytes, mapping.other_access);
  }
  if (result != Result::kSuccess) r.driver.unmap(mapping.address, mapping.size_bytes);
  return result;
}

using MappingIterator = std::map<Address, Mapping>::iterator;

/// Unmaps all mappings; on failure `stopped_at` is the first that is still mapped.
Result unmap_all(Runtime& r, MappingIterator* stopped_at) {
  auto& mappings = r.inventory.mappings();
  for (auto next = mappings.begin(); next != mappings.end(); ++next) {
    *stopped_at = next;
    const Result result = r.driver.unmap(next->first, next->second.size_bytes);
    if (result != Result::kSuccess) return result;
  }
  *stopped_at = mappings.end();
  return Result::kSuccess;
}

/// Unmaps the mappings before `end`; the driver refuses those that are not mapped.
void unmap_before(Runtime& r, MappingIterator end) {
  for (auto next = r.inventory.mappings().begin(); next != end; ++next) {
    r.driver.unmap(next->first, next->second.size_bytes);
  }
}

/// Maps all mappings before `end`; on failure none is mapped, and `failed_id` is the one that
/// failed.
Result map_all(Runtime& r, MappingIterator end, std::uint64_t* failed_id) {
  for (auto next = r.inventory.mappings().begin(); next != end; ++next) {
    const Result result = remap(r, next->second);
    if (result == Result::kSuccess) continue;
    *failed_id = next->second.physical->id;
    unmap_before(r, next);
    return result;
  }
  return Result::kSuccess;
}

/// Releases all physical memory of a runtime and closes its descriptors; the first failure makes
/// `ending` kBroken.
void release_all(Runtime& r, Ending* ending) {
  for (auto& [id, physical] : r.inventory.physicals()) {
    const Result result = r.driver.release(physical.handle);
    physical.handle = 0;
    close_descriptors(physical);
    if (result != Result::kSuccess && ending->outcome == Outcome::kOk) {
      *ending = {Outcome::kBroken, number(result), id};
    }
  }
  r.detached = true;
}

void release_handle(Runtime& r, Physical& physical) {
  if (physical.handle != 0) r.driver.release(physical.handle);
  physical.handle = 0;
}

void release_handles(Runtime& r) {
  for (auto& [id, physical] : r.inventory.physicals()) release_handle(r, physical);
}

/// Imports all offered descriptors; skips allocations with a handle, which kReplace has created.
Result import_all(Runtime& r, std::uint64_t* failed_id) {
  for (auto& [id, physical] : r.inventory.physicals()) {
    if (physical.handle != 0) continue;
    const Result result = r.driver.import_descriptor(&physical.handle, physical.offered_fd);
    if (result != Result::kSuccess) {
      physical.handle = 0;
      *failed_id = id;
      return result;
    }
  }
  return Result::kSuccess;
}

/// Attaches one runtime. On failure it stays detached.
Result attach_runtime(Runtime& r, std::uint64_t* failed_id) {
  Result result = restore_stack_limits(r);
  if (result == Result::kSuccess) result = import_all(r, failed_id);
  if (result == Result::kSuccess) result = map_all(r, r.inventory.mappings().end(), failed_id);
  if (result != Result::kSuccess) release_handles(r);
  return result;
}

bool can_be_replaced(const Runtime& r, const Physical& physical) {
  return r.detached && physical.offered_fd >= 0 && physical.handle == 0 && physical.host_node < 0 &&
         !physical.shared && physical.origin != Origin::kImported;
}

/// Creates new memory with the properties of `physical`, and a descriptor of it.
Result recreate(Runtime& r, Physical& physical, int* descriptor) {
  DeviceFacts& facts = r.devices[physical.device];
  Handle made = 0;
  Result result =
      physical.origin == Origin::kApplication
          ? r.driver.create_as(&made, physical.size_bytes, physical.asked, 0)
          : r.driver.create(&made, physical.size_bytes, physical.device, facts.rdma_capable);
  if (result != Result::kSuccess) return result;
  result = r.driver.export_descriptor(descriptor, made);
  if (result != Result::kSuccess) {
    r.driver.release(made);
    return result;
  }
  physical.handle = made;
  facts.uuid = r.driver.uuid(physical.device);
  return result;
}

/// Releases memory from recreate() that the agent has not filled.
void discard_replacement(std::uint64_t id) {
  Runtime& r = *g_started[Inventory::runtime_of(id)];
  if (r.detached) release_handle(r, *find_physical(id));
}

void settle_after_attach(Runtime& r) {
  for (auto& [id, physical] : r.inventory.physicals()) {
    physical.retained_fd = physical.offered_fd;
    physical.offered_fd = -1;
    physical.export_session = 0;
  }
  for (int device = 0; device < kMaxDevices; ++device) {
    if (r.devices[device].asked) r.devices[device].uuid = r.driver.uuid(device);
  }
  if (r.inventory.has_ipc_records()) permit_opening();
  r.driver.after_restore();
  r.detached = false;
}

/// Unmaps the memory of all runtimes, or of none. kBroken: after a failure, not all of it could be
/// mapped again; then all of it is released, and only an attach with the agent's descriptors
/// restores it.
Ending unmap_runtimes() {
  Ending ending;
  for (std::size_t i = 0; i < kMaxRuntimes && ending.outcome == Outcome::kOk; ++i) {
    if (g_started[i] == nullptr) continue;
    MappingIterator stopped_at;
    const Result unmapped = unmap_all(*g_started[i], &stopped_at);
    if (unmapped == Result::kSuccess) continue;
    ending = driver_failed(unmapped, stopped_at->second.physical->id);
    std::uint64_t lost_id = 0;
    const auto maps_again = [&](Runtime& r, MappingIterator end) {
      return map_all(r, end, &lost_id) == Result::kSuccess;
    };
    bool back = maps_again(*g_started[i], stopped_at);
    for_each_runtime(
        [&](Runtime& r) { back = back && maps_again(r, r.inventory.mappings().end()); }, i);
    if (back) return ending;
    ending.outcome = Outcome::kBroken;
    for_each_runtime([](Runtime& r) { unmap_before(r, r.inventory.mappings().end()); });
    Ending ignored;
    for_each_runtime([&](Runtime& r) { release_all(r, &ignored); });
  }
  return ending;
}

}  // namespace

door::Summary summarize() {
  const AllLocked locked;
  door::Summary summary{};
  for_each_runtime([&](Runtime& r) { add_to(summary, r); });
  summary.gated_calls_in_flight = gate::in_flight();
  summary.door_tid = door_thread_id();
  summary.gate_closed = gate::is_closed() ? 1 : 0;
  summary.held_calls = gate::held();
  summary.withheld = withheld_lookups();
  return summary;
}

std::size_t list(std::uint64_t after_id, std::span<door::DoorEntry> entries) {
  const AllLocked locked;
  std::size_t count = 0;
  for_each_runtime([&](Runtime& r) {
    auto& physicals = r.inventory.physicals();
    for (auto next = physicals.upper_bound(after_id);
         next != physicals.end() && count < entries.size(); ++next) {
      entries[count++] = entry_of(r, next->second);
    }
  });
  return count;
}

Ending export_all(std::uint64_t session, std::span<const std::uint64_t> ids,
                  std::span<door::DoorEntry> entries, std::span<int> descriptors) {
  Ending ending;
  {
    const AllLocked locked;
    if (any_detached()) return {Outcome::kBadRequest};
    const RaisedDescriptorLimit limit;  // the descriptors are sent and closed at once
    for (std::size_t i = 0; i < ids.size() && ending.outcome == Outcome::kOk; ++i) {
      Physical* physical = find_physical(ids[i]);
      if (physical == nullptr) {
        ending = {Outcome::kNotFound, 0, ids[i]};
        break;
      }
      Runtime& r = *g_started[Inventory::runtime_of(ids[i])];
      const Result result = export_descriptor(r, *physical, &descriptors[i]);
      if (result != Result::kSuccess) {
        ending = driver_failed(result, ids[i]);
        break;
      }
      g_loose[g_loose_count++] = descriptors[i];
      entries[i] = entry_of(r, *physical);
      physical->export_session = session;
    }
  }
  if (ending.outcome != Outcome::kOk) close_loose();
  return ending;
}

Ending replace(std::uint64_t session, std::span<const std::uint64_t> ids,
               std::span<door::DoorEntry> entries, std::span<int> descriptors) {
  const AllLocked locked;
  for (const std::uint64_t id : ids) {
    const Physical* physical = find_physical(id);
    if (physical == nullptr || !can_be_replaced(*g_started[Inventory::runtime_of(id)], *physical)) {
      return {Outcome::kBadRequest, 0, id};
    }
  }
  const RaisedDescriptorLimit limit;  // the descriptors are sent and closed at once
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Physical& physical = *find_physical(ids[i]);
    Runtime& r = *g_started[Inventory::runtime_of(ids[i])];
    const Result result = recreate(r, physical, &descriptors[2 * i]);
    if (result != Result::kSuccess) {
      for (const std::uint64_t made : ids.first(i)) discard_replacement(made);
      return driver_failed(result, ids[i]);
    }
    descriptors[2 * i + 1] = physical.offered_fd;
    physical.offered_fd = -1;
    g_loose[g_loose_count++] = descriptors[2 * i];
    g_loose[g_loose_count++] = descriptors[2 * i + 1];
    entries[i] = entry_of(r, physical);
    physical.export_session = session;
  }
  return {};
}

Ending open_userfaultfd(int* descriptor) {
  const std::lock_guard lock(g_mutex);
  // The flag is no limitation: with asynchronous write protection, which the agent uses, the kernel
  // resolves faults without a handler.
  constexpr unsigned long kFlags = O_CLOEXEC | UFFD_USER_MODE_ONLY;
  const int saved_errno = errno;
  *descriptor = static_cast<int>(::syscall(SYS_userfaultfd, kFlags));
  errno = saved_errno;
  if (*descriptor < 0) return {Outcome::kNotFound};
  g_loose[g_loose_count++] = *descriptor;
  return {};
}

std::size_t list_registered(std::uint64_t above, std::span<door::DoorEntry> entries) {
  const AllLocked locked;
  std::size_t count = 0;
  for (bool found = true; found && count < entries.size();) {
    door::DoorEntry& entry = entries[count];
    found = false;
    for_each_runtime([&](const Runtime& r) {
      const auto at = r.registered_memory.upper_bound(above);
      if (at == r.registered_memory.end() || (found && at->first > entry.id)) return;
      entry.size_bytes =
          found && at->first == entry.id ? std::max(entry.size_bytes, at->second) : at->second;
      entry.id = at->first;
      found = true;
    });
    if (!found) break;
    above = entry.id;
    ++count;
  }
  return count;
}

void close_loose() {
  const std::lock_guard lock(g_mutex);
  while (g_loose_count > 0) ::close(g_loose[--g_loose_count]);
}

Ending detach(std::uint64_t session) {
  const AllLocked locked;
  if (!gate::is_closed()) return {Outcome::kBadRequest};
  Ending ending;
  for_each_runtime([&](Runtime& r) {
    if (ending.outcome != Outcome::kOk) return;
    if (r.detached || blockers_of(r) != 0) ending.outcome = Outcome::kBadRequest;
  });
  for_each_runtime([&](Runtime& r) {
    for (const auto& [id, physical] : r.inventory.physicals()) {
      if (ending.outcome != Outcome::kOk) return;
      if (physical.export_session != session) ending = {Outcome::kNotFound, 0, id};
    }
  });
  if (ending.outcome != Outcome::kOk) return ending;
  ending = unmap_runtimes();
  if (ending.outcome != Outcome::kOk) return ending;
  for_each_runtime([&](Runtime& r) {
    release_all(r, &ending);
    lower_stack_limits(r);
    r.driver.before_checkpoint();
  });
  return ending;
}

Ending offer(std::span<const std::uint64_t> ids, std::span<const int> descriptors) {
  const AllLocked locked;
  Ending ending;
  if (!any_detached() || ids.size() != descriptors.size()) ending.outcome = Outcome::kBadRequest;
  for (std::size_t i = 0; i < ids.size() && ending.outcome == Outcome::kOk; ++i) {
    if (find_physical(ids[i]) == nullptr) ending = {Outcome::kNotFound, 0, ids[i]};
  }
  if (ending.outcome != Outcome::kOk) {
    for (const int descriptor : descriptors) ::close(descriptor);
    return ending;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Physical& physical = *find_physical(ids[i]);
    discard_replacement(ids[i]);
    if (physical.offered_fd >= 0) ::close(physical.offered_fd);
    physical.offered_fd = descriptors[i];
  }
  return ending;
}

Ending attach() {
  const AllLocked locked;
  if (!any_detached()) return {Outcome::kBadRequest};
  Ending ending;
  for_each_runtime([&](Runtime& r) {
    for (const auto& [id, physical] : r.inventory.physicals()) {
      if (ending.outcome != Outcome::kOk) return;
      if (physical.offered_fd < 0 && physical.handle == 0) ending = {Outcome::kNotFound, 0, id};
    }
  });
  if (ending.outcome != Outcome::kOk) return ending;
  const RaisedDescriptorLimit limit;  // for descriptors that the driver may open for an import
  for (std::size_t i = 0; i < kMaxRuntimes; ++i) {
    std::uint64_t failed_id = 0;
    const Result result =
        g_started[i] == nullptr ? Result::kSuccess : attach_runtime(*g_started[i], &failed_id);
    if (result == Result::kSuccess) continue;
    for_each_runtime(
        [](Runtime& before) {
          unmap_before(before, before.inventory.mappings().end());
          release_handles(before);
        },
        i);
    return driver_failed(result, failed_id);
  }
  for_each_runtime([](Runtime& r) { settle_after_attach(r); });
  return {};
}

bool is_detached() {
  const AllLocked locked;
  return any_detached();
}

Ending wait_until_idle(std::chrono::nanoseconds timeout, door::Obstacle* obstacle) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  *obstacle = door::Obstacle::kNone;
  for (std::size_t i = 0; i < kMaxRuntimes; ++i) {
    Runtime* runtime = nullptr;
    {
      const std::lock_guard lock(g_mutex);
      runtime = g_started[i];
    }
    if (runtime == nullptr) continue;
    const Ending ending =
        preload::wait_until_idle(*runtime, deadline - std::chrono::steady_clock::now(), obstacle);
    if (ending.outcome != Outcome::kOk) return ending;
  }
  return {};
}

void before_fork() { lock_all(); }

void after_fork_in_parent() { unlock_all(); }

bool after_fork_in_child() {
  while (g_loose_count > 0) ::close(g_loose[--g_loose_count]);
  for_each_runtime([](Runtime& r) {
    for (auto& [id, physical] : r.inventory.physicals()) close_descriptors(physical);
  });
  unlock_all();
  // If the parent used only NVML, the child starts over but keeps NVML's files, which it needs to
  // initialise NVML again.
  for (Runtime*& runtime : g_started) {
    if (runtime != nullptr && !runtime->used.load(std::memory_order_relaxed)) runtime = nullptr;
  }
  bounds::note_change();
  // The drivers cannot use their files in the child, and CRIU cannot dump them.
  for_each_runtime([](Runtime& r) {
    r.driver.pass_all_calls();
    for (const std::string_view prefix : r.driver.files()) release_files(prefix);
  });
  return std::ranges::any_of(g_started, [](const Runtime* r) { return r != nullptr; });
}

}  // namespace gcr::preload::runtime

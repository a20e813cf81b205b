#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "preload/cuda/backing.h"
#include "preload/cuda/capture.h"
#include "preload/cuda/contexts.h"
#include "preload/cuda/driver_calls.h"
#include "preload/cuda/stack_limits.h"
#include "preload/descriptors.h"
#include "preload/door.h"
#include "preload/gate.h"
#include "preload/inherited.h"
#include "preload/runtime.h"

namespace gcr::preload::runtime {
namespace {

using door::Outcome;

/// Exported and not yet sent. Guarded by the state's mutex.
int g_loose[door::kMaxEntries];
std::size_t g_loose_count = 0;

std::uint32_t blockers_of(ProcessState& s) {
  std::uint32_t blockers = 0;
  if (s.inventory.managed_count() > 0) blockers |= door::kManagedMemory;
  if (s.driver_ipc_exported) blockers |= door::kIpcExported;
  if (s.driver_ipc_imported > 0) blockers |= door::kIpcImported;
  if (!s.imported_handles.empty() || !s.imported_mappings.empty()) {
    blockers |= door::kForeignHandles;
  }
  for (const auto& [id, physical] : s.inventory.physicals()) {
    if (physical.foreign) blockers |= door::kForeignHandles;
  }
  if (!s.captures.empty() && any_capture(s)) blockers |= door::kStreamCapturing;
  return blockers;
}

door::DoorEntry entry_of(const ProcessState& s, const Physical& physical) {
  door::DoorEntry entry{};
  entry.id = physical.id;
  entry.size_bytes = physical.size_bytes;
  entry.device_ordinal = static_cast<std::uint32_t>(physical.device);
  entry.flags =
      physical.origin == Origin::kLibrary ? door::kMappedByLibrary : door::kMappedByApplication;
  if (physical.shared) entry.flags |= door::kShared;
  entry.host_node = physical.host_node;
  ::memcpy(entry.device_uuid, s.devices[physical.device].uuid.bytes, sizeof(entry.device_uuid));
  return entry;
}

/// What graphs have reserved on all devices for what they allocate, as the driver says; while it
/// must not be asked, as it was.
std::uint64_t graph_bytes(ProcessState& s) {
  if (s.detached || gate::is_closed()) return s.pools.graph_bytes;
  std::uint64_t asked = 0;
  s.pools.graph_bytes = 0;
  for (const KnownContext& known : s.contexts) {
    const std::uint64_t bit = std::uint64_t{1} << known.device;
    cuuint64_t bytes = 0;
    if ((asked & bit) == 0 &&
        real::cuDeviceGetGraphMemAttribute(known.device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                           &bytes) == CUDA_SUCCESS) {
      s.pools.graph_bytes += bytes;
    }
    asked |= bit;
  }
  return s.pools.graph_bytes;
}

/// Maps one range as it was, with the same access.
CUresult map_again(const Mapping& mapping) {
  CUresult result = real::cuMemMap(mapping.address, mapping.size_bytes, mapping.offset_bytes,
                                   mapping.physical->handle, 0);
  if (result != CUDA_SUCCESS) return result;
  CUmemAccessDesc accesses[kMaxDevices];
  std::size_t count = 0;
  for (int device = 0; device < kMaxDevices; ++device) {
    const std::uint64_t bit = std::uint64_t{1} << device;
    if ((mapping.readers & bit) == 0) continue;
    accesses[count++] = {{CU_MEM_LOCATION_TYPE_DEVICE, device},
                         (mapping.writers & bit) != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                      : CU_MEM_ACCESS_FLAGS_PROT_READ};
  }
  if (count > 0) {
    result = real::cuMemSetAccess(mapping.address, mapping.size_bytes, accesses, count);
  }
  if (result == CUDA_SUCCESS && !mapping.other_access.empty()) {
    result = real::cuMemSetAccess(mapping.address, mapping.size_bytes, mapping.other_access.data(),
                                  mapping.other_access.size());
  }
  if (result != CUDA_SUCCESS) {
    real::cuMemUnmap(mapping.address, mapping.size_bytes);
    return result;
  }
  return CUDA_SUCCESS;
}

using MappingIterator = std::map<CUdeviceptr, Mapping>::iterator;

/// Unmaps everything; `stopped_at` is the first mapping that is still mapped.
CUresult unmap_all(ProcessState& s, MappingIterator* stopped_at) {
  auto& mappings = s.inventory.mappings();
  for (auto next = mappings.begin(); next != mappings.end(); ++next) {
    *stopped_at = next;
    const CUresult result = real::cuMemUnmap(next->first, next->second.size_bytes);
    if (result != CUDA_SUCCESS) return result;
  }
  *stopped_at = mappings.end();
  return CUDA_SUCCESS;
}

/// Maps everything; on failure nothing is mapped, and `failed_id` says what could not be.
CUresult map_all(ProcessState& s, MappingIterator end, std::uint64_t* failed_id) {
  auto& mappings = s.inventory.mappings();
  for (auto next = mappings.begin(); next != end; ++next) {
    const CUresult result = map_again(next->second);
    if (result == CUDA_SUCCESS) continue;
    *failed_id = next->second.physical->id;
    for (auto undo = mappings.begin(); undo != next; ++undo) {
      real::cuMemUnmap(undo->first, undo->second.size_bytes);
    }
    return result;
  }
  return CUDA_SUCCESS;
}

Ending release_all(ProcessState& s) {
  Ending ending;
  for (auto& [id, physical] : s.inventory.physicals()) {
    const CUresult result = real::cuMemRelease(physical.handle);
    physical.handle = 0;
    close_descriptors(physical);
    if (result != CUDA_SUCCESS && ending.outcome == Outcome::kOk) {
      ending = {Outcome::kBroken, result, id};
    }
  }
  return ending;
}

void release_handles(ProcessState& s) {
  for (auto& [id, physical] : s.inventory.physicals()) {
    if (physical.handle != 0) real::cuMemRelease(physical.handle);
    physical.handle = 0;
  }
}

CUresult import_all(ProcessState& s, std::uint64_t* failed_id) {
  for (auto& [id, physical] : s.inventory.physicals()) {
    const auto descriptor = static_cast<std::intptr_t>(physical.offered_fd);
    const CUresult result =
        real::cuMemImportFromShareableHandle(&physical.handle, reinterpret_cast<void*>(descriptor),
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS) {
      physical.handle = 0;
      *failed_id = id;
      return result;
    }
  }
  return CUDA_SUCCESS;
}

void settle_after_attach(ProcessState& s) {
  for (auto& [id, physical] : s.inventory.physicals()) {
    physical.retained_fd = physical.offered_fd;
    physical.offered_fd = -1;
    physical.export_session = 0;
  }
  for (int device = 0; device < kMaxDevices; ++device) {
    if (s.devices[device].asked) s.devices[device].uuid = device_uuid(device);
  }
  s.detached = false;
}

}  // namespace

door::Summary summarize() {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  door::Summary summary{};
  summary.generation = s.inventory.generation();
  summary.tracked_bytes = s.inventory.tracked_bytes();
  summary.untracked_bytes = s.inventory.untracked_bytes() + graph_bytes(s);
  summary.gated_calls_in_flight = gate::in_flight();
  summary.allocations = s.inventory.tracked_count();
  summary.contexts = static_cast<std::uint32_t>(s.contexts.size());
  summary.blockers = blockers_of(s);
  summary.fallbacks = s.fallbacks;
  summary.door_tid = door_thread_id();
  summary.gate_closed = gate::is_closed() ? 1 : 0;
  summary.detached = s.detached ? 1 : 0;
  summary.lowered_stacks = lowered_stack_limits(s);
  summary.held_calls = gate::held();
  return summary;
}

std::size_t list(std::uint64_t after_id, std::span<door::DoorEntry> entries) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  std::size_t count = 0;
  auto& physicals = s.inventory.physicals();
  for (auto next = physicals.upper_bound(after_id);
       next != physicals.end() && count < entries.size(); ++next) {
    entries[count++] = entry_of(s, next->second);
  }
  return count;
}

Ending export_all(std::uint64_t session, std::span<const std::uint64_t> ids,
                  std::span<door::DoorEntry> entries, std::span<int> descriptors) {
  ProcessState& s = state();
  Ending ending;
  {
    const std::lock_guard lock(s.mutex);
    if (s.detached) return {Outcome::kBadRequest};
    const RaisedDescriptorLimit limit;  // they leave at once
    for (std::size_t i = 0; i < ids.size() && ending.outcome == Outcome::kOk; ++i) {
      Physical* physical = s.inventory.find_physical(ids[i]);
      if (physical == nullptr) {
        ending = {Outcome::kNotFound, CUDA_SUCCESS, ids[i]};
        break;
      }
      const CUresult result = export_descriptor(*physical, &descriptors[i]);
      if (result != CUDA_SUCCESS) {
        ending = {Outcome::kDriver, result, ids[i]};
        break;
      }
      g_loose[g_loose_count++] = descriptors[i];
      entries[i] = entry_of(s, *physical);
      physical->export_session = session;
    }
  }
  if (ending.outcome != Outcome::kOk) close_loose();
  return ending;
}

Ending open_userfaultfd(int* descriptor) {
  const std::lock_guard lock(state().mutex);
  // Faults of the kernel's own are no obstacle: the agent has all of them answered at once.
  constexpr unsigned long kFlags = O_CLOEXEC | UFFD_USER_MODE_ONLY;
  const int saved_errno = errno;
  *descriptor = static_cast<int>(::syscall(SYS_userfaultfd, kFlags));
  errno = saved_errno;
  if (*descriptor < 0) return {Outcome::kNotFound};
  g_loose[g_loose_count++] = *descriptor;
  return {};
}

std::size_t list_registered(std::uint64_t above, std::span<door::DoorEntry> entries) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  std::size_t count = 0;
  for (auto at = s.registered_memory.upper_bound(above);
       at != s.registered_memory.end() && count < entries.size(); ++at) {
    entries[count].id = at->first;
    entries[count++].size_bytes = at->second;
  }
  return count;
}

void close_loose() {
  const std::lock_guard lock(state().mutex);
  while (g_loose_count > 0) ::close(g_loose[--g_loose_count]);
}

Ending detach(std::uint64_t session) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.detached || !gate::is_closed() || blockers_of(s) != 0) return {Outcome::kBadRequest};
  for (const auto& [id, physical] : s.inventory.physicals()) {
    if (physical.export_session != session) return {Outcome::kNotFound, CUDA_SUCCESS, id};
  }
  MappingIterator stopped_at;
  const CUresult unmapped = unmap_all(s, &stopped_at);
  if (unmapped != CUDA_SUCCESS) {
    const std::uint64_t id = stopped_at->second.physical->id;
    std::uint64_t lost_id = 0;
    if (map_all(s, stopped_at, &lost_id) == CUDA_SUCCESS) return {Outcome::kDriver, unmapped, id};
    // Unmaps the rest too: from here only the agent's descriptors bring it back.
    for (; stopped_at != s.inventory.mappings().end(); ++stopped_at) {
      real::cuMemUnmap(stopped_at->first, stopped_at->second.size_bytes);
    }
    release_all(s);
    s.detached = true;
    return {Outcome::kBroken, unmapped, id};
  }
  s.detached = true;
  const Ending released = release_all(s);
  lower_stack_limits(s);
  return released;
}

Ending offer(std::span<const std::uint64_t> ids, std::span<const int> descriptors) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  Ending ending;
  if (!s.detached || ids.size() != descriptors.size()) ending.outcome = Outcome::kBadRequest;
  for (std::size_t i = 0; i < ids.size() && ending.outcome == Outcome::kOk; ++i) {
    const Physical* physical = s.inventory.find_physical(ids[i]);
    if (physical == nullptr) {
      ending = {Outcome::kNotFound, CUDA_SUCCESS, ids[i]};
    }
  }
  if (ending.outcome != Outcome::kOk) {
    for (const int descriptor : descriptors) ::close(descriptor);
    return ending;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Physical& physical = *s.inventory.find_physical(ids[i]);
    if (physical.offered_fd >= 0) ::close(physical.offered_fd);
    physical.offered_fd = descriptors[i];
  }
  return ending;
}

Ending attach() {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.detached) return {Outcome::kBadRequest};
  for (const auto& [id, physical] : s.inventory.physicals()) {
    if (physical.offered_fd < 0) return {Outcome::kNotFound, CUDA_SUCCESS, id};
  }
  const RaisedDescriptorLimit limit;  // for what the driver may need for an import
  std::uint64_t failed_id = 0;
  CUresult result = restore_stack_limits(s);
  if (result == CUDA_SUCCESS) result = import_all(s, &failed_id);
  if (result == CUDA_SUCCESS) result = map_all(s, s.inventory.mappings().end(), &failed_id);
  if (result != CUDA_SUCCESS) {
    release_handles(s);
    return {Outcome::kDriver, result, failed_id};
  }
  settle_after_attach(s);
  return {};
}

bool is_detached() {
  const std::lock_guard lock(state().mutex);
  return state().detached;
}

Ending wait_until_idle(std::chrono::nanoseconds timeout, door::Obstacle* obstacle) {
  bool capturing = false;
  {
    const std::lock_guard lock(state().mutex);
    capturing = any_capture(state());
  }
  *obstacle = capturing ? door::Obstacle::kCapture : door::Obstacle::kGpuWork;
  if (capturing) return {Outcome::kTimeout};
  CUresult result = CUDA_SUCCESS;
  const Idle idle = wait_for_contexts(timeout, &result);
  if (idle == Idle::kTimeout) return {Outcome::kTimeout};
  if (idle == Idle::kDriver) return {Outcome::kDriver, result};
  {
    const std::lock_guard lock(state().mutex);
    note_all_passed(state());
  }
  flush_deferred_frees();
  *obstacle = door::Obstacle::kNone;
  return {};
}

void prepare() { state(); }

void before_fork() { state().mutex.lock(); }

void after_fork_in_parent() { state().mutex.unlock(); }

void after_fork_in_child() {
  for (auto& [id, physical] : state().inventory.physicals()) close_descriptors(physical);
  while (g_loose_count > 0) ::close(g_loose[--g_loose_count]);
  state().mutex.unlock();
  leave_calls_to_driver();
  // Not even the driver can use them in here, and CRIU cannot dump them.
  let_go_of_files("/dev/nvidia");
}

}  // namespace gcr::preload::runtime

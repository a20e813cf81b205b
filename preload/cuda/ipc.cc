// Legacy IPC on backed memory. The driver cannot make an IPC handle of memory that it mapped from a
// descriptor, so the library makes the 64 opaque bytes: they name a descriptor of a process, and a
// place in its memory. The opening process, under this library too, takes the descriptor with
// pidfd_getfd and maps it, the whole arena where there is one, once for all allocations in it.
// The driver's own allocations keep the driver's handles.
//
// Fetching needs the right to ptrace the exporter: the same user, and where the Yama module forbids
// even that, the exporter's permission, which it gives (to processes of its user) with its first
// handle. Both processes have to see each other's PIDs.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "preload/cuda/backing.h"
#include "preload/cuda/capture.h"
#include "preload/cuda/driver_calls.h"
#include "preload/cuda/tracked.h"
#include "preload/descriptors.h"
#include "preload/log.h"
#include "src/base/unique_fd.h"

namespace gcr::preload {
namespace {

constexpr std::uint64_t kIpcMagic = 0x3143'5049'5243'4721;

/// The content of our handles.
struct IpcTicket {
  std::uint64_t magic;
  std::int32_t pid;
  std::int32_t fd;
  std::uint64_t
      start_time;  ///< of the process, in clock ticks since boot: tells a reused PID apart
  std::uint64_t id;
  std::uint64_t size_bytes;
  std::uint64_t offset_bytes;
  std::uint64_t requested_bytes;
  std::uint64_t unused;
};
static_assert(sizeof(IpcTicket) == sizeof(CUipcMemHandle));

/// Field 22 of /proc/PID/stat, or 0 if there is no such process.
std::uint64_t start_time_of(pid_t pid) {
  char path[64], text[1024];
  ::snprintf(path, sizeof(path), "/proc/%d/stat", static_cast<int>(pid));
  const UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
  if (!file) return 0;
  const ssize_t length = ::read(file.get(), text, sizeof(text) - 1);
  if (length <= 0) return 0;
  text[length] = '\0';
  const char* field = ::strrchr(text, ')');  // the name before it may contain anything
  for (int skip = 2; field != nullptr && skip < 22; ++skip) field = ::strchr(field + 1, ' ');
  return field == nullptr ? 0 : ::strtoull(field + 1, nullptr, 10);
}

/// The exporter's descriptor, in this process.
UniqueFd fetch_descriptor(const IpcTicket& ticket) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, ticket.pid, 0)));
  if (!process || start_time_of(ticket.pid) != ticket.start_time) return UniqueFd();
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), ticket.fd, 0)));
}

/// Makes the 64 bytes for a backed allocation. Holds the mutex already.
CUresult make_ticket(const Mapping& mapping, const Plain& plain, CUipcMemHandle* handle) {
  Physical& physical = *mapping.physical;
  if (!physical.shared) {
    const CUresult result = share(physical);
    if (result != CUDA_SUCCESS) return result;
    ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  }
  IpcTicket ticket{};
  ticket.magic = kIpcMagic;
  ticket.pid = ::getpid();
  ticket.fd = physical.retained_fd;
  ticket.start_time = start_time_of(ticket.pid);
  ticket.id = physical.id;
  ticket.size_bytes = physical.size_bytes;
  ticket.offset_bytes = plain.address - mapping.address;
  ticket.requested_bytes = plain.requested_bytes;
  ::memcpy(handle, &ticket, sizeof(ticket));
  return CUDA_SUCCESS;
}

std::uint64_t exporter_key(const IpcTicket& ticket) {
  return ticket.start_time << 22 ^ static_cast<std::uint32_t>(ticket.pid);
}

/// One more opening of an allocation in `mapping`. Holds the mutex already.
CUdeviceptr open_in(ProcessState& s, const Mapping& mapping, const IpcTicket& ticket) {
  const CUdeviceptr address = mapping.address + ticket.offset_bytes;
  Plain* plain = s.inventory.find_plain(address);
  if (plain == nullptr) plain = &s.inventory.add_plain(address, ticket.requested_bytes);
  ++plain->ipc_opens;
  return address;
}

/// The same memory, opened earlier in the same context.
std::optional<CUdeviceptr> open_again(const IpcTicket& ticket, CUcontext context) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  for (const auto& [address, mapping] : s.inventory.mappings()) {
    if (mapping.context == context && mapping.ipc_key[0] == exporter_key(ticket) &&
        mapping.ipc_key[1] == ticket.id) {
      return open_in(s, mapping, ticket);
    }
  }
  return std::nullopt;
}

CUdeviceptr remember_opened(const IpcTicket& ticket, CUcontext context, int device,
                            CUmemGenericAllocationHandle handle, UniqueFd descriptor,
                            CUdeviceptr address) {
  CUmemAllocationProp told{};
  real::cuMemGetAllocationPropertiesFromHandle(&told, handle);
  const int owner = device_of(told);  // maybe another device than the one that opens it
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  Physical& physical =
      s.inventory.add_physical(handle, ticket.size_bytes, owner, Origin::kImported);
  physical.shared = true;
  physical.retained_fd = move_high(descriptor.release());
  Mapping& mapping = s.inventory.add_mapping(address, ticket.size_bytes, 0, physical);
  mapping.readers = mapping.writers = std::uint64_t{1} << device;
  mapping.context = context;
  mapping.ipc_key[0] = exporter_key(ticket);
  mapping.ipc_key[1] = ticket.id;
  return open_in(s, mapping, ticket);
}

CUresult open_ticket(CUdeviceptr* address, const IpcTicket& ticket) {
  CUcontext context = nullptr;
  int device = 0;
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!current_context(&context, &device)) return CUDA_ERROR_INVALID_CONTEXT;
  // As in the driver: not in the process that made the handle.
  if (ticket.pid == ::getpid() && ticket.start_time == start_time_of(ticket.pid)) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (const auto known = open_again(ticket, context)) {
    *address = *known;
    return CUDA_SUCCESS;
  }
  UniqueFd fd = fetch_descriptor(ticket);
  if (!fd) {
    log_line("cannot fetch descriptor %d of process %d: %s", ticket.fd, ticket.pid,
             ::strerror(errno));
    return CUDA_ERROR_INVALID_HANDLE;
  }
  CUmemGenericAllocationHandle handle = 0;
  const CUresult imported = real::cuMemImportFromShareableHandle(
      &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get())),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (imported != CUDA_SUCCESS) return imported;
  const CUdeviceptr mapped =
      map_whole(handle, ticket.size_bytes, device_facts(device).granularity_bytes, device);
  if (mapped == 0) {
    real::cuMemRelease(handle);
    return CUDA_ERROR_MAP_FAILED;
  }
  *address = remember_opened(ticket, context, device, handle, std::move(fd), mapped);
  return CUDA_SUCCESS;
}

template <class Function>
CUresult open_handle(CUdeviceptr* address, const CUipcMemHandle& handle, Function real_call) {
  IpcTicket ticket;
  ::memcpy(&ticket, &handle, sizeof(ticket));
  if (ticket.magic == kIpcMagic) return open_ticket(address, ticket);
  const CUresult result = real_call();
  if (result != CUDA_SUCCESS) return result;
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  ++s.driver_ipc_imported;
  return result;
}

enum class Closing { kDriver, kStillOpen, kDeferred, kTaken };

Closing close_once(CUdeviceptr address, Freed* taken) {
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  Plain* plain = s.inventory.find_plain(address);
  if (plain == nullptr || plain->address != address || plain->ipc_opens == 0) {
    return Closing::kDriver;
  }
  if (--plain->ipc_opens > 0) return Closing::kStillOpen;
  *taken = take_plain(s, *s.inventory.find_mapping(address), address);
  if (!any_capture(s)) return Closing::kTaken;
  s.deferred_frees.push_back({std::move(*taken), nullptr});
  return Closing::kDeferred;
}

CUresult close_in_driver(CUdeviceptr address) {
  const CUresult result = real::cuIpcCloseMemHandle(address);
  ProcessState& s = state();
  const std::lock_guard lock(s.mutex);
  if (result == CUDA_SUCCESS && s.driver_ipc_imported > 0) --s.driver_ipc_imported;
  return result;
}

}  // namespace

namespace tracked {

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  ProcessState& s = state();
  {
    const std::lock_guard lock(s.mutex);
    const Plain* plain = s.inventory.find_plain(address);
    const Mapping* mapping = s.inventory.find_mapping(address);
    if (plain != nullptr && mapping->physical->origin == Origin::kLibrary &&
        mapping->pool == nullptr) {
      return handle == nullptr ? CUDA_ERROR_INVALID_VALUE : make_ticket(*mapping, *plain, handle);
    }
  }
  const CUresult result = real::cuIpcGetMemHandle(handle, address);
  const std::lock_guard lock(s.mutex);
  if (result == CUDA_SUCCESS) s.driver_ipc_exported = true;
  return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) {
  return open_handle(address, handle,
                     [&] { return real::cuIpcOpenMemHandle(address, handle, flags); });
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) {
  return open_handle(address, handle,
                     [&] { return real::cuIpcOpenMemHandle_v2(address, handle, flags); });
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  Freed freed;
  switch (close_once(address, &freed)) {
    case Closing::kDriver:
      return close_in_driver(address);
    case Closing::kStillOpen:
    case Closing::kDeferred:
      return CUDA_SUCCESS;
    case Closing::kTaken:
      break;
  }
  const CUresult result = synchronize(freed.context);
  release(freed);
  return result;
}

}  // namespace tracked
}  // namespace gcr::preload

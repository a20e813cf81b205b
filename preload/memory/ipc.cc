#include "preload/memory/ipc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "preload/descriptors.h"
#include "preload/log.h"
#include "preload/memory/backing.h"
#include "preload/memory/capture.h"
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
  std::uint64_t runtime;  ///< its number
};
static_assert(sizeof(IpcTicket) == kIpcHandleBytes);

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
Result make_ticket(Runtime& r, const Mapping& mapping, const Plain& plain, void* handle) {
  Physical& physical = *mapping.physical;
  if (!physical.shared) {
    const Result result = share(r, physical);
    if (result != Result::kSuccess) return result;
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
  ticket.runtime = r.number;
  ::memcpy(handle, &ticket, sizeof(ticket));
  return Result::kSuccess;
}

std::uint64_t exporter_key(const IpcTicket& ticket) {
  return ticket.start_time << 22 ^ static_cast<std::uint32_t>(ticket.pid);
}

/// One more opening of an allocation in `mapping`. Holds the mutex already.
Address open_in(Runtime& r, const Mapping& mapping, const IpcTicket& ticket) {
  const Address address = mapping.address + ticket.offset_bytes;
  Plain* plain = r.inventory.find_plain(address);
  if (plain == nullptr) plain = &r.inventory.add_plain(address, ticket.requested_bytes);
  ++plain->ipc_opens;
  return address;
}

/// The same memory, opened earlier in the same context.
std::optional<Address> open_again(Runtime& r, const IpcTicket& ticket, Context* context) {
  const std::lock_guard lock(r.mutex);
  for (const auto& [address, mapping] : r.inventory.mappings()) {
    if (mapping.context == context && mapping.ipc_key[0] == exporter_key(ticket) &&
        mapping.ipc_key[1] == ticket.id) {
      return open_in(r, mapping, ticket);
    }
  }
  return std::nullopt;
}

Address remember_opened(Runtime& r, const IpcTicket& ticket, Context* context, int device,
                        Handle handle, UniqueFd descriptor, Address address) {
  Asked told;
  r.driver.properties_of(handle, &told);
  const int owner = device_of(r, told);  // maybe another device than the one that opens it
  const std::lock_guard lock(r.mutex);
  Physical& physical =
      r.inventory.add_physical(handle, ticket.size_bytes, owner, Origin::kImported);
  physical.shared = true;
  physical.retained_fd = move_high(descriptor.release());
  Mapping& mapping = r.inventory.add_mapping(address, ticket.size_bytes, 0, physical);
  mapping.readers = mapping.writers = std::uint64_t{1} << device;
  mapping.context = context;
  mapping.ipc_key[0] = exporter_key(ticket);
  mapping.ipc_key[1] = ticket.id;
  return open_in(r, mapping, ticket);
}

Result open_ticket(Runtime& r, Address* address, const IpcTicket& ticket) {
  Context* context = nullptr;
  int device = 0;
  if (address == nullptr) return Result::kInvalidValue;
  if (ticket.runtime != r.number) return Result::kInvalidHandle;
  if (!current_context(r, &context, &device)) return Result::kInvalidContext;
  // As in the driver: not in the process that made the handle.
  if (ticket.pid == ::getpid() && ticket.start_time == start_time_of(ticket.pid)) {
    return Result::kInvalidContext;
  }
  if (const auto known = open_again(r, ticket, context)) {
    *address = *known;
    return Result::kSuccess;
  }
  UniqueFd fd = fetch_descriptor(ticket);
  if (!fd) {
    log_line("cannot fetch descriptor %d of process %d: %s", ticket.fd, ticket.pid,
             ::strerror(errno));
    return Result::kInvalidHandle;
  }
  Handle handle = 0;
  const Result imported = r.driver.import_descriptor(&handle, fd.get());
  if (imported != Result::kSuccess) return imported;
  const Address mapped =
      map_whole(r, handle, ticket.size_bytes, device_facts(r, device).granularity_bytes, device);
  if (mapped == 0) {
    r.driver.release(handle);
    return Result::kMapFailed;
  }
  *address = remember_opened(r, ticket, context, device, handle, std::move(fd), mapped);
  return Result::kSuccess;
}

enum class Closing { kDriver, kStillOpen, kDeferred, kTaken };

Closing close_once(Runtime& r, Address address, Freed* taken) {
  const std::lock_guard lock(r.mutex);
  Plain* plain = r.inventory.find_plain(address);
  if (plain == nullptr || plain->address != address || plain->ipc_opens == 0) {
    return Closing::kDriver;
  }
  if (--plain->ipc_opens > 0) return Closing::kStillOpen;
  *taken = take_plain(r, *r.inventory.find_mapping(address), address);
  if (!any_capture(r)) return Closing::kTaken;
  r.deferred_frees.push_back({std::move(*taken), nullptr});
  return Closing::kDeferred;
}

}  // namespace

std::optional<Result> export_ipc(Runtime& r, void* handle, Address address) {
  const std::lock_guard lock(r.mutex);
  const Plain* plain = r.inventory.find_plain(address);
  const Mapping* mapping = r.inventory.find_mapping(address);
  if (plain == nullptr || mapping->physical->origin != Origin::kLibrary ||
      mapping->pool != nullptr) {
    return std::nullopt;
  }
  return handle == nullptr ? Result::kInvalidValue : make_ticket(r, *mapping, *plain, handle);
}

void note_driver_ipc_exported(Runtime& r) {
  const std::lock_guard lock(r.mutex);
  r.driver_ipc_exported = true;
}

std::optional<Result> open_ipc(Runtime& r, Address* address, const void* handle) {
  IpcTicket ticket;
  ::memcpy(&ticket, handle, sizeof(ticket));
  if (ticket.magic != kIpcMagic) return std::nullopt;
  return open_ticket(r, address, ticket);
}

void note_driver_ipc_opened(Runtime& r) {
  const std::lock_guard lock(r.mutex);
  ++r.driver_ipc_imported;
}

std::optional<Result> close_ipc(Runtime& r, Address address) {
  Freed freed;
  switch (close_once(r, address, &freed)) {
    case Closing::kDriver:
      return std::nullopt;
    case Closing::kStillOpen:
    case Closing::kDeferred:
      return Result::kSuccess;
    case Closing::kTaken:
      break;
  }
  const Result result = synchronize(r, freed.context);
  release(r, freed);
  return result;
}

void note_driver_ipc_closed(Runtime& r) {
  const std::lock_guard lock(r.mutex);
  if (r.driver_ipc_imported > 0) --r.driver_ipc_imported;
}

}  // namespace gcr::preload

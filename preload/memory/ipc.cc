#include "preload/memory/ipc.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <optional>

#include "preload/descriptors.h"
#include "preload/log.h"
#include "preload/memory/backing.h"
#include "preload/memory/capture.h"
#include "src/base/unique_fd.h"

namespace gcr::preload {
namespace {

constexpr std::uint64_t kIpcMagic = 0x3243'5049'5243'4721;

/// The content of this library's handles. A change of its layout, or of IpcRecord's, needs a new
/// magic.
struct IpcTicket {
  std::uint64_t magic;
  std::int32_t pid;
  std::uint32_t runtime;    ///< number of the runtime
  const IpcRecord* record;  ///< address in the process `pid`
  std::uint64_t exporter;  ///< equals the record's, unless the process or allocation is another one
  std::uint64_t buffer_id;
  std::uint64_t zeros[3];
};
static_assert(sizeof(IpcTicket) == kIpcHandleBytes && sizeof(IpcRecord) == 7 * 8);

/// The record of an allocation in another process, and that process's descriptor of the memory.
struct Exported {
  IpcRecord record;
  int descriptor = -1;
  bool operator==(const Exported&) const = default;
};

template <class Value>
bool read_from(pid_t pid, const Value* address, Value* value) {
  const iovec here{value, sizeof(*value)};
  const iovec there{const_cast<Value*>(address), sizeof(*value)};
  return ::process_vm_readv(pid, &here, 1, &there, 1, 0) == ssize_t{sizeof(*value)};
}

/// Reads the ticket's record from its process. False: the process or the memory does not exist,
/// cannot be read, or the allocation was freed.
bool read_exported(const IpcTicket& ticket, Exported* exported) {
  IpcRecord& record = exported->record;
  if (!read_from(ticket.pid, ticket.record, &record)) return false;
  errno = ESTALE;
  return record.exporter == ticket.exporter && record.buffer_id == ticket.buffer_id &&
         record.offset_bytes <= record.size_bytes &&
         record.requested_bytes <= record.size_bytes - record.offset_bytes &&
         read_from(ticket.pid, record.descriptor, &exported->descriptor);
}

/// Copies the exporter's descriptor into this process, and reads its record.
UniqueFd fetch_descriptor(const IpcTicket& ticket, IpcRecord* record) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, ticket.pid, 0)));
  Exported exported, afterwards;
  if (!process || !read_exported(ticket, &exported)) return UniqueFd();
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), exported.descriptor, 0)));
  // If the record changed, the allocation was freed and the descriptor's number may have been
  // reused.
  if (!fd || !read_exported(ticket, &afterwards) || afterwards != exported) return UniqueFd();
  *record = exported.record;
  return fd;
}

/// This process's random exporter number, generated with the first handle; 0 if getrandom fails.
std::uint64_t exporter_of(Runtime& r) {
  while (r.ipc_exporter == 0) {
    if (::getrandom(&r.ipc_exporter, sizeof(r.ipc_exporter), 0) != sizeof(r.ipc_exporter)) return 0;
  }
  return r.ipc_exporter;
}

/// Writes the 64 bytes of a handle for a backed allocation. The caller holds the mutex.
Result make_ticket(Runtime& r, const Mapping& mapping, const Plain& plain, void* handle) {
  Physical& physical = *mapping.physical;
  if (exporter_of(r) == 0) return Result::kOperatingSystem;
  if (!physical.shared) {
    const Result result = share(r, physical);
    if (result != Result::kSuccess) return result;
    permit_opening();
  }
  IpcRecord& record = r.inventory.ipc_record(plain.address);
  record = {.exporter = r.ipc_exporter,
            .buffer_id = plain.buffer_id,
            .descriptor = &physical.retained_fd,
            .physical_id = physical.id,
            .size_bytes = physical.size_bytes,
            .offset_bytes = mapping.offset_bytes + (plain.address - mapping.address),
            .requested_bytes = plain.requested_bytes};
  const IpcTicket ticket{.magic = kIpcMagic,
                         .pid = ::getpid(),
                         .runtime = r.number,
                         .record = &record,
                         .exporter = r.ipc_exporter,
                         .buffer_id = plain.buffer_id,
                         .zeros = {}};
  ::memcpy(handle, &ticket, sizeof(ticket));
  return Result::kSuccess;
}

/// Counts one more open of an allocation in `mapping`; returns its address. The caller holds the
/// mutex.
Address open_in(Runtime& r, const Mapping& mapping, const IpcRecord& record) {
  const Address address = mapping.address + record.offset_bytes;
  Plain* plain = r.inventory.find_plain(address);
  if (plain == nullptr) plain = &r.inventory.add_plain(address, record.requested_bytes);
  ++plain->ipc_opens;
  return address;
}

/// Opens the allocation in memory that this context has mapped already; nullopt if it has not.
std::optional<Address> open_again(Runtime& r, const IpcRecord& record, Context* context) {
  const std::lock_guard lock(r.mutex);
  for (const auto& [address, mapping] : r.inventory.mappings()) {
    if (mapping.context == context && mapping.ipc_key[0] == record.exporter &&
        mapping.ipc_key[1] == record.physical_id) {
      return open_in(r, mapping, record);
    }
  }
  return std::nullopt;
}

Address remember_opened(Runtime& r, const IpcRecord& record, Context* context, int device,
                        Handle handle, UniqueFd descriptor, Address address) {
  Asked told;
  r.driver.properties_of(handle, &told);
  const int owner = device_of(r, told);  // may differ from the device that opens it
  const std::lock_guard lock(r.mutex);
  Physical& physical =
      r.inventory.add_physical(handle, record.size_bytes, owner, Origin::kImported);
  physical.shared = true;
  physical.retained_fd = move_high(descriptor.release());
  Mapping& mapping = r.inventory.add_mapping(address, record.size_bytes, 0, physical);
  mapping.readers = mapping.writers = std::uint64_t{1} << device;
  mapping.context = context;
  mapping.ipc_key[0] = record.exporter;
  mapping.ipc_key[1] = record.physical_id;
  return open_in(r, mapping, record);
}

Result open_ticket(Runtime& r, Address* address, const IpcTicket& ticket) {
  Context* context = nullptr;
  int device = 0;
  if (address == nullptr) return Result::kInvalidValue;
  if (ticket.runtime != r.number) return Result::kInvalidHandle;
  if (!current_context(r, &context, &device)) return Result::kInvalidContext;
  // As in the driver, the process that made the handle cannot open it.
  if (ticket.pid == ::getpid() && ticket.exporter == r.ipc_exporter) {
    return Result::kInvalidContext;
  }
  IpcRecord record;
  UniqueFd fd = fetch_descriptor(ticket, &record);
  if (!fd) {
    log_line("cannot open an IPC handle of process %d: %s", ticket.pid, ::strerror(errno));
    return Result::kInvalidHandle;
  }
  if (const auto known = open_again(r, record, context)) {
    *address = *known;
    return Result::kSuccess;
  }
  Handle handle = 0;
  const Result imported = r.driver.import_descriptor(&handle, fd.get());
  if (imported != Result::kSuccess) return imported;
  const Address mapped =
      map_whole(r, handle, record.size_bytes, device_facts(r, device).granularity_bytes, device);
  if (mapped == 0) {
    r.driver.release(handle);
    return Result::kMapFailed;
  }
  *address = remember_opened(r, record, context, device, handle, std::move(fd), mapped);
  return Result::kSuccess;
}

}  // namespace

Result export_ipc(Runtime& r, void* handle, Address address, RealCall driver) {
  {
    const std::lock_guard lock(r.mutex);
    const Plain* plain = r.inventory.find_plain(address);
    const Mapping* mapping = r.inventory.find_mapping(address);
    if (plain != nullptr && mapping->physical->origin == Origin::kLibrary &&
        mapping->pool == nullptr) {
      return handle == nullptr ? Result::kInvalidValue : make_ticket(r, *mapping, *plain, handle);
    }
  }
  const Result result = driver();
  if (result != Result::kSuccess) return result;
  const std::lock_guard lock(r.mutex);
  r.driver_ipc_exported = true;
  return result;
}

void permit_opening() { ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); }

Result open_ipc(Runtime& r, Address* address, const void* handle, RealCall driver) {
  IpcTicket ticket;
  ::memcpy(&ticket, handle, sizeof(ticket));
  if (ticket.magic == kIpcMagic) return open_ticket(r, address, ticket);
  const Result result = driver();
  if (result != Result::kSuccess) return result;
  const std::lock_guard lock(r.mutex);
  ++r.driver_ipc_imported;
  return result;
}

Result close_ipc(Runtime& r, Address address, RealCall driver) {
  std::unique_lock lock(r.mutex);
  Plain* plain = r.inventory.find_plain(address);
  if (plain == nullptr || plain->address != address || plain->ipc_opens == 0) {
    lock.unlock();
    const Result result = driver();
    lock.lock();
    if (result == Result::kSuccess && r.driver_ipc_imported > 0) --r.driver_ipc_imported;
    return result;
  }
  if (--plain->ipc_opens > 0) return Result::kSuccess;
  Freed freed = remove_from_inventory(r, *r.inventory.find_mapping(address), address);
  if (any_capture(r)) {
    r.deferred_frees.push_back({std::move(freed), nullptr});
    return Result::kSuccess;
  }
  lock.unlock();
  const Result result = synchronize(r, freed.context);
  release(r, freed);
  return result;
}

}  // namespace gcr::preload

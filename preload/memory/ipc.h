// Legacy IPC on backed memory. The driver cannot export an IPC handle of memory that it mapped from
// a descriptor, so the library fills the 64 opaque bytes itself. They name a process and a record
// in its memory (IpcRecord); the record tells the process's current descriptor of the memory, and
// the allocation's offset in it. PIDs, addresses and contents move with a job, so a handle is valid
// as long as its allocation lives; one that was sent before a migration can be opened after it.
//
// The opening process, which also runs under this library, reads the record, copies the descriptor
// with pidfd_getfd, and maps the memory: a whole arena once, for all allocations in it. A free
// first clears the record, so an old handle opens nothing. Allocations of the driver keep the
// driver's handles, and so do events: the driver keeps those in files on /dev/shm, whose names
// contain the exporter's PID and which move with the job (decision 19).
//
// Opening requires the right to ptrace the exporter: the same user and, under the Yama module, the
// exporter's permission, which it gives (to processes of its user) with its first handle, and again
// after a migration. Both processes must see each other's PIDs.
//
// Functions take the mutex unless they say otherwise. `driver` is the application's call, made
// without the mutex for memory that is not backed.
#pragma once

#include <cstddef>

#include "preload/memory/runtime.h"

namespace gcr::preload {

inline constexpr std::size_t kIpcHandleBytes = 64;

/// Writes a handle of kIpcHandleBytes for the allocation at `address`; `handle` may be null.
Result export_ipc(Runtime& r, void* handle, Address address, RealCall driver);
/// Permits processes of the same user to open this process's handles. Takes no mutex; any thread.
void permit_opening();

/// Opens a handle in the current context; `address` may be null.
Result open_ipc(Runtime& r, Address* address, const void* handle, RealCall driver);

Result close_ipc(Runtime& r, Address address, RealCall driver);

}  // namespace gcr::preload

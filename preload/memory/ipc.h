// Legacy IPC on backed memory. The driver cannot make an IPC handle of memory that it mapped from a
// descriptor, so the library makes the 64 opaque bytes: they name a process and a record in its
// memory, which says by which descriptor the process has the memory now, and where the allocation
// is in it. All that they name moves with a job: PIDs, addresses, contents. So a handle is the same
// as long as its allocation lives, and those that are under way at a move are opened after it. The
// opening process, under this library too, reads the record, takes the descriptor with pidfd_getfd,
// and maps it, the whole arena where there is one, once for all allocations in it. An allocation
// that is freed empties its record first, so an old handle opens nothing else.
// The driver's own allocations keep the driver's handles, and so do events: the driver has those in
// files on /dev/shm, whose names have the exporter's PID and move with the job (decision 19).
//
// Reading and fetching need the right to ptrace the exporter: the same user, and where the Yama
// module forbids even that, the exporter's permission, which it gives (to processes of its user)
// with its first handle, and again after a move. Both processes have to see each other's PIDs.
//
// Every other function takes the mutex. Nothing: it is the driver's to answer; then it is told what
// the driver did.
#pragma once

#include <cstddef>
#include <optional>

#include "preload/memory/runtime.h"

namespace gcr::preload {

inline constexpr std::size_t kIpcHandleBytes = 64;

/// Makes a handle of so many bytes for the allocation at `address`; `handle` may be null.
std::optional<Result> export_ipc(Runtime& r, void* handle, Address address);
/// Lets the processes of this one's user open its handles. Takes no mutex; any thread.
void permit_opening();
void note_driver_ipc_exported(Runtime& r);

/// Opens a handle in the current context; `address` may be null.
std::optional<Result> open_ipc(Runtime& r, Address* address, const void* handle);
void note_driver_ipc_opened(Runtime& r);

std::optional<Result> close_ipc(Runtime& r, Address address);
void note_driver_ipc_closed(Runtime& r);

}  // namespace gcr::preload

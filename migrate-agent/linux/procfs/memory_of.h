// The memory of another process, by its addresses (process_vm_readv, process_vm_writev).
//
// A PID may have become that of another program: callers hold the process stopped, or believe
// nothing of what they read. What needs more goes through /proc/PID/mem.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/base/result.h"

namespace gcr::procfs {

/// Fills `bytes` with what is at `there`, of the same size together; all or an error. kIo if the
/// process has no readable memory there, kNotFound if it is gone.
Status read_memory(pid_t pid, std::span<const iovec> there, std::span<std::byte> bytes);
Status read_memory(pid_t pid, std::uint64_t address, std::span<std::byte> bytes);

/// Writes all of `bytes`, or gives an error after any part of them.
Status write_memory(pid_t pid, std::uint64_t address, std::span<const std::byte> bytes);

}  // namespace gcr::procfs

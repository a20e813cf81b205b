// The memory of a process as its program had it when it was opened.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>

#include "src/base/read_memory.h"
#include "src/base/result.h"

namespace gcr::process {

/// Threads that read memory; more do not help: 8 read 25 GB/s on the machine of docs/design.md's
/// figures.
inline constexpr std::size_t kMostReaders = 8;

/// Says whether a process may be moved.
using MayMove = std::function<Status(pid_t)>;

/// Opens the memory of a process, and then asks `may_move`, unless it is empty. What is read is
/// that of the program that was allowed: from when the process executes another one, also one of
/// another user's, a read is kIo. kNotFound if the process is gone, or has its parent's memory
/// still, as in vfork; else what `may_move` says.
Result<ReadMemory> open_memory(pid_t pid, const MayMove& may_move = {});

}  // namespace gcr::process

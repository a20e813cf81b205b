// What the door asks of the runtimes whose calls the library interposes, CUDA and HIP, of all that
// have started in the process together: list the inventory, export descriptors, detach and attach.
// Implemented in preload/memory.
//
// Called only by the door's thread, except where it says otherwise; every function takes the
// state's mutexes. None calls malloc, because stopped threads may hold its locks. Between a detach
// and its attach, only attach calls the driver: the process may be locked by a checkpoint.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "preload/door_protocol.h"

namespace gcr::preload::runtime {

/// How a request ended, and on which allocation (0: none in particular).
struct Ending {
  door::Outcome outcome = door::Outcome::kOk;
  unsigned driver_result = 0;  ///< the driver's own number, for kDriver and kBroken
  std::uint64_t failed_id = 0;
};

/// Counts and blockers as they are now. `generation`, `door_tid` and the gate's state included.
door::Summary summarize();

/// Fills `entries` with the allocations whose ids are above `after_id`, in the order of ids;
/// returns how many. Fewer than there is room for: there are no more.
std::size_t list(std::uint64_t after_id, std::span<door::DoorEntry> entries);

/// One new descriptor for each id, into `descriptors` (of the same length). On failure there are
/// none. They stay known as loose, for the child of a fork to close, until close_loose.
Ending export_all(std::uint64_t session, std::span<const std::uint64_t> ids,
                  std::span<door::DoorEntry> entries, std::span<int> descriptors);
void close_loose();

/// See door::Op::kWatchMemory. The descriptor is loose, too.
Ending open_userfaultfd(int* descriptor);

/// See door::Op::kRegisteredMemory; the number of entries.
std::size_t list_registered(std::uint64_t above, std::span<door::DoorEntry> entries);

/// See door::Op::kDetach. All runtimes are detached, or none.
Ending detach(std::uint64_t session);

/// Takes ownership of `descriptors`, also on failure.
Ending offer(std::span<const std::uint64_t> ids, std::span<const int> descriptors);

/// See door::Op::kReplace: descriptors[2 * i] is the new memory's, the next one was offered. Until
/// close_loose() they stay open here.
Ending replace(std::uint64_t session, std::span<const std::uint64_t> ids,
               std::span<door::DoorEntry> entries, std::span<int> descriptors);

/// See door::Op::kAttach. All runtimes are attached, or none.
Ending attach();

/// Between a detach and its attach.
bool is_detached();

/// With the gate closed, or by a thread that is alone in it: waits until the GPUs have done all
/// submitted work, and frees what was only waiting for that. kTimeout says in `obstacle` what is in
/// the way.
Ending wait_until_idle(std::chrono::nanoseconds timeout, door::Obstacle* obstacle);

/// Around a fork, in the thread that forks: the child sees the state whole, lets go of everything
/// that would keep memory alive or that it cannot use, and has its calls answered by the driver.
void before_fork();
void after_fork_in_parent();
/// Whether a runtime had been used: the child never has a door then.
bool after_fork_in_child();

}  // namespace gcr::preload::runtime

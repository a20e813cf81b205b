// The operations of the door: list the inventory, export descriptors, detach and attach. Each works
// on all runtimes (CUDA and HIP) that have started in the process. Implemented in preload/memory.
//
// Only the door's thread calls these functions, unless one says otherwise; each takes the mutexes
// of the state. None calls malloc, because stopped threads may hold its locks. Between a detach and
// its attach, only attach calls the driver: a checkpoint may have locked the process.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "preload/door_protocol.h"

namespace gcr::preload::runtime {

/// The result of a request, and the allocation that failed (0: none in particular).
struct Ending {
  door::Outcome outcome = door::Outcome::kOk;
  unsigned driver_result = 0;  ///< the driver's own number, for kDriver and kBroken
  std::uint64_t failed_id = 0;
};

/// Returns the current counts and blockers, with `generation`, `door_tid` and the gate's state.
door::Summary summarize();

/// Fills `entries` with the allocations whose ids are above `after_id`, in the order of ids;
/// returns their number. Fewer than entries.size(): there are no more.
std::size_t list(std::uint64_t after_id, std::span<door::DoorEntry> entries);

/// Exports one new descriptor for each id into `descriptors` (of the same length), or none on
/// failure. They are recorded as loose until close_loose(), so that the child of a fork closes
/// them.
Ending export_all(std::uint64_t session, std::span<const std::uint64_t> ids,
                  std::span<door::DoorEntry> entries, std::span<int> descriptors);
void close_loose();

/// Opens a userfaultfd for door::Op::kWatchMemory. The descriptor is loose until close_loose().
Ending open_userfaultfd(int* descriptor);

/// Fills `entries` for door::Op::kRegisteredMemory; returns their number.
std::size_t list_registered(std::uint64_t above, std::span<door::DoorEntry> entries);

/// Performs door::Op::kDetach: detaches all runtimes, or none.
Ending detach(std::uint64_t session);

/// Performs door::Op::kOffer. Takes ownership of `descriptors`, also on failure.
Ending offer(std::span<const std::uint64_t> ids, std::span<const int> descriptors);

/// Performs door::Op::kReplace: descriptors[2 * i] is the new memory, the next one the offered
/// memory. They stay open here until close_loose().
Ending replace(std::uint64_t session, std::span<const std::uint64_t> ids,
               std::span<door::DoorEntry> entries, std::span<int> descriptors);

/// Performs door::Op::kAttach: attaches all runtimes, or none.
Ending attach();

/// Whether a runtime is between a detach and its attach.
bool is_detached();

/// Waits until the GPUs have finished all submitted work, and performs the frees that were deferred
/// until then. Call it with the gate closed, or from a thread with exclusive access to it. After a
/// kTimeout, `obstacle` names the activity that has not ended.
Ending wait_until_idle(std::chrono::nanoseconds timeout, door::Obstacle* obstacle);

/// The fork handlers, in the forking thread. The child sees a consistent state; it releases
/// everything that would keep memory alive or that it cannot use, and its calls go to the driver
/// directly.
void before_fork();
void after_fork_in_parent();
/// Returns whether a runtime had been used; then the child never has a door.
bool after_fork_in_child();

}  // namespace gcr::preload::runtime

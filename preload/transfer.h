// What the door does with the inventory: list it, export descriptors, detach and attach. Called
// only by the door's thread; every function takes the state's mutex.
//
// None of them calls malloc, because stopped threads may hold its locks. Between a detach
// and its attach, only attach calls the driver: the process may be locked by a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "preload/cuda/driver_abi.h"
#include "preload/door_protocol.h"

namespace gcr::preload::transfer {

/// How a request ended, and on which allocation (0: none in particular).
struct Ending {
  door::Outcome outcome = door::Outcome::kOk;
  CUresult result = CUDA_SUCCESS;
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

/// See door::Op::kDetach.
Ending detach(std::uint64_t session);

/// Takes ownership of `descriptors`, also on failure.
Ending offer(std::span<const std::uint64_t> ids, std::span<const int> descriptors);

/// See door::Op::kAttach.
Ending attach();

/// In the child of a fork, before the state is reset: closes everything that would keep memory
/// alive.
void close_all_descriptors();

}  // namespace gcr::preload::transfer

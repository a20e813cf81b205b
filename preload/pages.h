// What the agent has the door do with the application's own memory.
#pragma once

#include <cstdint>
#include <span>

#include "preload/runtime.h"

namespace gcr::preload::pages {

/// Says which memory is the calling thread's own stack. The door's thread does this when it starts;
/// the one call here that may allocate. Without it every request is refused.
void note_own_stack();

/// See door::Op::kDropPages and kUseHugePages, one of which `op` is; `numbers` are the request's
/// ids. `advised_bytes` says how much was done in every case. Only the door's thread calls this.
/// Takes no lock, calls no malloc and writes nowhere but
/// to that stack.
runtime::Ending advise(door::Op op, std::span<const std::uint64_t> numbers,
                       std::uint64_t* advised_bytes);

}  // namespace gcr::preload::pages

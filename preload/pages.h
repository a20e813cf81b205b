// What the door does with the application's own memory for the agent.
#pragma once

#include <cstdint>
#include <span>

#include "preload/runtime.h"

namespace gcr::preload::pages {

/// Records the calling thread's own stack. The door's thread calls this when it starts; it is the
/// only call here that may allocate. Without it every request is refused.
void note_own_stack();

/// See door::Op::kDropPages and kUseHugePages, one of which `op` is; `numbers` are the request's
/// ids. `advised_bytes` gives the bytes done, also on failure. Only the door's thread calls this.
/// Takes no lock, calls no malloc and writes only to that stack.
runtime::Ending advise(door::Op op, std::span<const std::uint64_t> numbers,
                       std::uint64_t* advised_bytes);

}  // namespace gcr::preload::pages

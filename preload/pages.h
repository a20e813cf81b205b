// Requests of the door that advise the kernel about the application's ordinary memory.
#pragma once

#include <cstdint>
#include <span>

#include "preload/runtime.h"

namespace gcr::preload::pages {

/// Records the calling thread's own stack. The door's thread calls it when it starts. It may
/// allocate, unlike advise(), which refuses every request without it.
void note_own_stack();

/// Performs `op`, which is door::Op::kDropPages or kUseHugePages; `numbers` are the request's ids.
/// Sets `advised_bytes` to the bytes done, also on failure. Only the door's thread calls it. Takes
/// no lock, calls no malloc and writes only to that thread's stack.
runtime::Ending advise(door::Op op, std::span<const std::uint64_t> numbers,
                       std::uint64_t* advised_bytes);

}  // namespace gcr::preload::pages

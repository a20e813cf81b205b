// Lowers the stack limits of contexts while the application is stopped.
//
// The driver keeps a stack for every thread that could be resident on a GPU, in VRAM that its
// checkpoint copies to host memory: 260 MiB for an otherwise empty context of an H200, gigabytes
// once a kernel with a large frame has run. The stacks are unused when no kernel runs, so the limit
// is lowered for the switchover and restored before the gate opens; each takes a millisecond.
// Limits of the device's malloc heap and printf buffer are not touched: lowering them frees
// nothing.
#pragma once

#include "preload/memory/runtime.h"

namespace gcr::preload {

/// Lowers the stack limit of every known context and records the old value. The contexts must be
/// idle and the gate closed. Skips contexts that do not permit it. The caller holds the mutex.
void lower_stack_limits(Runtime& r);

/// Restores the lowered limits. On failure (no VRAM for the stacks, for example) some are restored,
/// and the others can be tried again. The caller holds the mutex.
Result restore_stack_limits(Runtime& r);

/// Number of contexts whose limit is lowered now. The caller holds the mutex.
std::uint32_t lowered_stack_limits(const Runtime& r);

}  // namespace gcr::preload

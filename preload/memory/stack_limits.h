// The contexts' stacks while the application is stopped.
//
// The driver keeps a stack for every thread that could be resident on a GPU, in VRAM that its
// checkpoint copies into host memory: 260 MiB of an H200's otherwise empty context, gigabytes once
// a kernel with a large frame has run. It is unused when no kernel runs, so the stack limit is
// lowered for the switchover and restored before the gate opens; each takes a millisecond. Limits
// of the device's malloc heap and printf buffer are not touched: lowering them frees nothing.
#pragma once

#include "preload/memory/runtime.h"

namespace gcr::preload {

/// Lowers the stack limit of every known context and remembers what it was. The contexts are idle
/// and the gate is closed. A context that does not allow it stays as it is. Mutex held.
void lower_stack_limits(Runtime& r);

/// Puts back what was lowered. On failure (no VRAM for the stacks, say) some are put back and the
/// others can be tried again. Mutex held.
Result restore_stack_limits(Runtime& r);

/// Contexts whose limit is lowered now. Mutex held.
std::uint32_t lowered_stack_limits(const Runtime& r);

}  // namespace gcr::preload

// Streams that are being captured. Meanwhile the library must not synchronise or free: that would
// invalidate the capture.
#pragma once

#include "preload/memory/runtime.h"

namespace gcr::preload {

/// Whether a stream is being captured. Drops streams whose capture ended without a tracked call.
/// The caller holds the mutex.
bool any_capture(Runtime& r);

/// Record that the driver began, or ended, the capture of a stream with `result`, and return
/// `result`. Destroying a stream ends its capture, because its handle must not be queried
/// afterwards. `per_thread`: null means the calling thread's own stream. Both take the mutex.
Result capture_began(Runtime& r, Result result, Stream* stream, bool per_thread);
Result capture_ended(Runtime& r, Result result, Stream* stream, bool per_thread);

}  // namespace gcr::preload

// Streams that are being captured. While there is one, the library must not synchronise or free:
// that would invalidate the capture.
#pragma once

#include "preload/memory/runtime.h"

namespace gcr::preload {

/// Whether a stream is being captured. Streams whose capture ended unseen are dropped. Holds the
/// mutex already.
bool any_capture(Runtime& r);

/// The result of the driver's call that began, or ended, the capture of a stream; passed on. A
/// stream that is destroyed ends its capture: its handle must not be asked again. `per_thread`:
/// null is the calling thread's own stream. Takes the mutex.
Result capture_began(Runtime& r, Result result, Stream* stream, bool per_thread);
Result capture_ended(Runtime& r, Result result, Stream* stream, bool per_thread);

}  // namespace gcr::preload

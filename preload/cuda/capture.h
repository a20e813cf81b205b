// Streams that are being captured. While there is one, the library must not synchronise or free:
// that would invalidate the capture.
#pragma once

#include "preload/cuda/process_state.h"

namespace gcr::preload {

/// Whether a stream is being captured. Streams whose capture ended unseen are dropped. Holds the
/// mutex already.
bool any_capture(ProcessState& state);

}  // namespace gcr::preload

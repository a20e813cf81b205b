// Work that must not stop halfway, whatever becomes of the caller's process.
#pragma once

#include <functional>

#include "src/base/result.h"

namespace gcr::criu {

/// Does `work` in a process of its own that shares the caller's memory and descriptors, and waits
/// for its end, as in vfork(2). The death of the caller's process does not end it. What `work`
/// traces is let go at its end. kInternal if it ends without a result. `work` must not end threads
/// or start any, and takes milliseconds.
Status run_apart(const std::function<Status()>& work);

}  // namespace gcr::criu

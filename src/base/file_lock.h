// flock(2) with a limit on the wait. The lock belongs to the open file: it goes when the last
// descriptor of it does.
#pragma once

#include <chrono>
#include <string_view>

#include "src/base/result.h"

namespace gcr {

/// As long as anybody holds a lock around a few calls to the kernel, however busy the host is.
inline constexpr std::chrono::seconds kLockPatience{10};

/// Locks all of `fd` for its owner alone. kTimeout, naming `what`, where another holds it longer
/// than `patience`; 0 tries once. Blocking; any thread.
Status lock_file(int fd, std::string_view what, std::chrono::milliseconds patience = kLockPatience);

}  // namespace gcr

// flock(2) with a limit on the wait. The lock belongs to the open file: it ends with the file's
// last descriptor.
#pragma once

#include <chrono>
#include <string_view>

#include "src/base/result.h"

namespace gcr {

/// Longer than a process holds a lock around a few system calls, even on a busy host.
inline constexpr std::chrono::seconds kLockPatience{10};

/// Locks all of `fd` exclusively. kTimeout, naming `what`, if another process holds it longer than
/// `patience`; 0 tries once. Blocking; any thread.
Status lock_file(int fd, std::string_view what, std::chrono::milliseconds patience = kLockPatience);

}  // namespace gcr

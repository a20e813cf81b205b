// The session keyring that a process passes to its children.
#pragma once

#include <errno.h>
#include <linux/keyctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gcr {

/// Leaves the session keyring for a new one without keys, which children inherit. False with errno
/// set on failure. Success where no process has keyrings: a kernel without them, or a container
/// that forbids them.
inline bool leave_session_keyring() {
  return ::syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, nullptr) >= 0 || errno == ENOSYS ||
         errno == EPERM;
}

}  // namespace gcr

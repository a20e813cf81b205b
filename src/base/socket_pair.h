// A socket pair between this process and a child.
#pragma once

#include <errno.h>
#include <sys/socket.h>

#include <string>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr {

/// Two connected Unix sockets that carry packets (SOCK_SEQPACKET), close-on-exec.
struct SocketPair {
  UniqueFd ours;
  UniqueFd theirs;

  /// Creates the pair. Kernel errors name the `other` process, such as "CRIU".
  static Result<SocketPair> create(const std::string& other) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
      return Error::from_errno(errno, "cannot make a socket pair for " + other);
    }
    return SocketPair{UniqueFd(ends[0]), UniqueFd(ends[1])};
  }
};

}  // namespace gcr

// What the kernel says of sockets, by inode, in the caller's network namespace.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>

#include "src/base/result.h"

namespace gcr::process {

/// Unix sockets that have a peer: own inode -> the peer's.
Result<std::map<std::uint64_t, std::uint64_t>> unix_peers();

/// Inodes of TCP sockets that are neither closed nor listening, in the network namespace of `pid`.
std::set<std::uint64_t> live_tcp_sockets(pid_t pid);

}  // namespace gcr::process

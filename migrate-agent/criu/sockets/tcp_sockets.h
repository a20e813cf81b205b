// TCP sockets of stopped processes, reached through copies of their descriptors.
//
// Before a dump, connections between the processes are locked: by a socket filter that drops
// everything that arrives, so that both ends are dumped as of one moment, and no rule of the host's
// firewall is needed. The kernel sends again what was dropped. The dump leaves connections in
// repair mode (TCP_REPAIR): they send nothing, also when their processes are killed.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "src/base/result.h"

namespace gcr::criu {

/// An address in numbers, IPv4-mapped ones as IPv4, and a port.
struct TcpEnd {
  std::string address;
  std::uint16_t port = 0;

  auto operator<=>(const TcpEnd&) const = default;
  std::string to_string() const;  ///< "10.0.0.1:80", "[::1]:80"
};

/// A connection as one of its ends names it.
struct TcpConnection {
  TcpEnd local;
  TcpEnd remote;

  auto operator<=>(const TcpConnection&) const = default;
  TcpConnection other_end() const { return {remote, local}; }
};
using TcpConnections = std::set<TcpConnection>;

enum class Repaired {
  kAll,
  kOutside,  ///< those whose other end none of the processes has
};

/// Locks the connections with both ends in the processes, but not those with a filter of their own.
Status lock_connections(const std::vector<pid_t>& pids);

/// Unlocks connections of the processes and takes them out of repair mode: they go on as before the
/// dump. Others stay as they are. Processes that are gone have none.
Status end_repair(const std::vector<pid_t>& pids, Repaired which);

/// Makes connections to outside tell their peers where they are, by the probe that the kernel sends
/// when a repair ends: a peer that answers makes them send what it lacks, without waiting for a
/// timer.
Status send_at_once(const std::vector<pid_t>& pids);

/// Closes `closing` for writing, and resets those of `resetting` that are not reset by now.
Status end_connections(const std::vector<pid_t>& pids, const TcpConnections& closing,
                       const TcpConnections& resetting);

}  // namespace gcr::criu

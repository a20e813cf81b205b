// TCP sockets of stopped processes, reached through copies of their descriptors.
//
// A dump leaves connections in repair mode (TCP_REPAIR): they send nothing, and end without a word
// when their processes are killed.
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

/// Takes connections of the processes out of repair mode: they go on as before the dump. Those that
/// are in no repair mode stay as they are. Processes that are gone have none.
Status end_repair(const std::vector<pid_t>& pids, Repaired which);

/// Closes `closing` for writing, and resets those of `resetting` that are not reset by now.
Status end_connections(const std::vector<pid_t>& pids, const TcpConnections& closing,
                       const TcpConnections& resetting);

}  // namespace gcr::criu

// What the kernel says of sockets, by inode, in the caller's network namespace.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "src/base/result.h"

namespace gcr::process {

/// Unix sockets that have a peer: own inode -> the peer's.
Result<std::map<std::uint64_t, std::uint64_t>> unix_peers();

/// A TCP or UDP socket that is bound to a port. Addresses are in numbers, IPv4 or IPv6.
struct InternetSocket {
  std::string protocol;  ///< "tcp" or "udp"
  std::string address;
  std::uint16_t port = 0;
  std::string remote_address;
  std::uint16_t remote_port = 0;
  std::uint64_t inode = 0;    ///< 0: no process has it
  bool connection = false;    ///< TCP that is neither closed nor listening nor in TIME_WAIT
  std::uint32_t waiting = 0;  ///< connections that a listener has not accepted

  /// What is left of a connection that has ended (TIME_WAIT).
  bool is_left_over() const { return protocol == "tcp" && !connection && remote_port != 0; }

  /// "10.0.0.1:80", "[::1]:80"
  std::string local_name() const;
  std::string remote_name() const;

  /// What the kernel tells connections apart by, and what those of the other end are.
  using Ends = std::tuple<std::string, std::uint16_t, std::string, std::uint16_t>;
  Ends ends() const { return {address, port, remote_address, remote_port}; }
  Ends other_ends() const { return {remote_address, remote_port, address, port}; }
};

/// Those of the network namespace of `pid`.
std::vector<InternetSocket> internet_sockets(pid_t pid);

/// Lets go of what is left of a connection in the caller's network namespace. Kernels before 6.8
/// keep it for a minute all the same.
void forget(const InternetSocket& left_over);

/// One line of /proc/net/tcp and the like; none if it is no such line.
std::optional<InternetSocket> parse_socket(const std::string& protocol, const std::string& line);

}  // namespace gcr::process

// What the kernel says of sockets, by inode, in the caller's network namespace.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/base/result.h"

namespace gcr::process {

/// Unix sockets that have a peer: own inode -> the peer's.
Result<std::map<std::uint64_t, std::uint64_t>> unix_peers();

/// A TCP or UDP socket that is bound to a port.
struct InternetSocket {
  std::string protocol;  ///< "tcp" or "udp"
  std::string address;   ///< in numbers, IPv4 or IPv6
  std::uint16_t port = 0;
  std::uint64_t inode = 0;
  bool connection = false;  ///< TCP that is neither closed nor listening
};

/// Those of the network namespace of `pid`.
std::vector<InternetSocket> internet_sockets(pid_t pid);

/// One line of /proc/net/tcp and the like; none if it is no such line.
std::optional<InternetSocket> parse_socket(const std::string& protocol, const std::string& line);

}  // namespace gcr::process

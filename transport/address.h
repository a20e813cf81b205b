// Addresses on which receivers listen.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/result.h"

namespace gcr::transport {

struct Address {
  std::string host;  ///< a name or an IPv4 or IPv6 address, with `%interface` if it needs one
  std::uint16_t port = 0;

  bool operator==(const Address&) const = default;
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

/// "10.0.0.1 port 7000".
std::string describe(const Address& address);

/// Resolves `address` to at least one socket address, in the order in which to try them. Blocks for
/// as long as the resolver does. Fails with kUnavailable.
Result<std::vector<SocketAddress>> resolve(const Address& address);

}  // namespace gcr::transport

// Which addresses of this host stand for those of the host that a process comes from, and which
// ports are free here.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "src/base/result.h"

namespace gcr::process {

/// An address in numbers, IPv4-mapped ones as IPv4: "::ffff:10.0.0.1" -> "10.0.0.1".
std::string unmapped(const std::string& address);

/// Knows this host's addresses as they were when it was made. Immutable: any thread.
class Addresses {
 public:
  /// `reached`: the address of this host at which the other agent has reached this one.
  explicit Addresses(const std::string& reached);

  /// The address here that stands for `address` of the other host. Wildcards, loopback and
  /// multicast addresses stay, and what this host has too; any other becomes `reached`. None if
  /// that is of another family, or if the address is link-local.
  std::optional<std::string> here(const std::string& address) const;

 private:
  std::string reached_;
  std::set<std::string> own_;
};

/// An address in the network's byte order, in numbers; IPv4-mapped ones as IPv4. `family` is
/// AF_INET or AF_INET6; empty for others.
std::string address_text(int family, const void* number);

/// "10.0.0.1:80", "[::1]:80"
std::string end_text(const std::string& address, std::uint16_t port);

/// Success if a socket can be bound so ("tcp" or "udp"), shared with no other. kRefused if not.
/// What is left of closed connections (TIME_WAIT) would keep others from listening at their port
/// for a minute if its sockets did not ask for SO_REUSEADDR: where nothing else is there, it goes.
Status check_free(const std::string& protocol, const std::string& address, std::uint16_t port);

}  // namespace gcr::process

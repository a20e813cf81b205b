// Addresses of agents.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/result.h"

namespace gcr::control {

inline constexpr std::uint16_t kDefaultPort = 7411;

/// Default path of an agent's local socket; agent.toml may name another.
inline constexpr std::string_view kDefaultLocalSocket = "/run/gcr-migrate.sock";

/// Where an agent listens. An IPv6 address before a port is in brackets. A host that begins with
/// "/" is the path of a local socket; its port is unused.
struct Endpoint {
  std::string host;
  std::uint16_t port = kDefaultPort;

  bool is_local() const { return host.starts_with('/'); }

  /// Parses "host", "host:port", "[v6]:port", "[v6]" or "v6". kInvalidArgument, quoting the text.
  static Result<Endpoint> parse(const std::string& text);
  /// Parses also "local" or "unix:/PATH", for a local socket.
  static Result<Endpoint> parse_local_too(const std::string& text);
  std::string to_string() const;
};

}  // namespace gcr::control

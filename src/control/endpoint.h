// Where an agent is reached.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/result.h"

namespace gcr::control {

inline constexpr std::uint16_t kDefaultPort = 7411;

/// Where an agent's local users reach it, unless agent.toml says otherwise.
inline constexpr std::string_view kDefaultLocalSocket = "/run/gcr-migrate.sock";

/// Where an agent listens. IPv6 addresses stand in brackets where a port follows. A host that
/// begins with "/" is the path of an agent's local socket, and there is no port.
struct Endpoint {
  std::string host;
  std::uint16_t port = kDefaultPort;

  bool is_local() const { return host.starts_with('/'); }

  /// From "host", "host:port", "[v6]:port", "[v6]" or "v6". kInvalidArgument, quoting the text.
  static Result<Endpoint> parse(const std::string& text);
  /// The same, and "local" or "unix:/PATH" for a local socket.
  static Result<Endpoint> parse_local_too(const std::string& text);
  std::string to_string() const;
};

}  // namespace gcr::control

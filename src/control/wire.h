// What stands on the wire of a control connection, and the names in it; no sockets, no Asio.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::control {

inline constexpr std::uint32_t kProtocolVersion = 5;
/// Of an agent's message; of a Hello; of what operators and local users ask.
inline constexpr std::size_t kMaxMessageBytes = 16u << 20;
inline constexpr std::size_t kMaxHelloBytes = 4u << 10;
inline constexpr std::size_t kMaxQuestionBytes = 64u << 10;
/// That a peer may send within one second.
inline constexpr unsigned kMaxMessagesPerSecond = 1000;
inline constexpr std::uint16_t kDefaultPort = 7411;

/// What a new connection is for. Zero is never used.
enum class ConnectionKind : std::uint8_t {
  kInvalid = 0,
  kControl = 1,  ///< gets a new worker process
  kData = 2,     ///< goes to the worker that owns the migration
};

/// The first 24 bytes of every connection: "GCRM", version (1), kind, two zero bytes, migration id.
inline constexpr std::size_t kPrefaceBytes = 24;
struct Preface {
  ConnectionKind kind = ConnectionKind::kInvalid;
  Uuid migration;  ///< all zero where the connection starts no particular migration

  std::array<std::uint8_t, kPrefaceBytes> encode() const;
  static Result<Preface> decode(std::span<const std::uint8_t, kPrefaceBytes> bytes);
};

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

/// Failure <-> Error. A code of another release becomes kInternal; the text comes back printable.
proto::Failure to_failure(const Error& error);
Error from_failure(const proto::Failure& failure);

/// What a peer sent, safe to print: at most 4 KiB, control characters replaced by "?".
std::string printable(std::string_view text);

}  // namespace gcr::control

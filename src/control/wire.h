// What stands on the wire of a control connection, and the names in it; no sockets, no Asio.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/uuid.h"
#include "src/control/endpoint.h"

namespace gcr::control {

inline constexpr std::uint32_t kProtocolVersion = 16;
/// Of an agent's message; of a Hello; of what operators and local users ask.
inline constexpr std::size_t kMaxMessageBytes = 16u << 20;
inline constexpr std::size_t kMaxHelloBytes = 4u << 10;
inline constexpr std::size_t kMaxQuestionBytes = 64u << 10;
/// That a peer may send within one second.
inline constexpr unsigned kMaxMessagesPerSecond = 1000;

/// What a new connection is for. Zero is never used.
enum class ConnectionKind : std::uint8_t {
  kInvalid = 0,
  kControl = 1,  ///< gets a new worker process
  kData = 2,     ///< goes to the worker that owns the migration
};

/// The first 24 bytes of every connection: "GCRM", version (1), kind, two zero bytes, migration id.
inline constexpr std::size_t kPrefaceBytes = 24;
using PrefaceBytes = std::array<std::uint8_t, kPrefaceBytes>;
struct Preface {
  ConnectionKind kind = ConnectionKind::kInvalid;
  Uuid migration;  ///< all zero where the connection starts no particular migration

  PrefaceBytes encode() const;
  static Result<Preface> decode(const PrefaceBytes& bytes);
};

/// Messages follow the preface: each has its length in four bytes, the highest first, and then the
/// Envelope.
using LengthBytes = std::array<std::uint8_t, 4>;

/// The bytes of one message. kInvalidArgument if it is empty or longer than kMaxMessageBytes.
Result<std::string> encode_message(const proto::Envelope& message);

/// How long a message is that `from` announces. kProtocol if that cannot be, or is more than
/// `most`.
Result<std::size_t> decode_length(const LengthBytes& bytes, const std::string& from,
                                  std::size_t most = kMaxMessageBytes);

/// The message in `payload`, which has a body. kProtocol if this release does not understand it.
Result<proto::Envelope> decode_message(const std::string& payload, const std::string& from);

/// Failure <-> Error. A code of another release becomes kInternal; the text comes back printable.
proto::Failure to_failure(const Error& error);
Error from_failure(const proto::Failure& failure);

/// What a peer sent, safe to print: at most 4 KiB, control characters replaced by "?".
std::string printable(std::string_view text);

}  // namespace gcr::control

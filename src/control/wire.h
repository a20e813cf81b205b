// The wire format of a control connection and its constants; no sockets, no Asio.
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

inline constexpr std::uint32_t kProtocolVersion = 17;
/// Longest messages: of an agent; a Hello; a request of an operator or local user.
inline constexpr std::size_t kMaxMessageBytes = 16u << 20;
inline constexpr std::size_t kMaxHelloBytes = 4u << 10;
inline constexpr std::size_t kMaxQuestionBytes = 64u << 10;
/// Messages that a peer may send within one second.
inline constexpr unsigned kMaxMessagesPerSecond = 1000;

/// The purpose of a new connection. Zero is never used.
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
  Uuid migration;  ///< all zero if the connection belongs to no particular migration

  PrefaceBytes encode() const;
  static Result<Preface> decode(const PrefaceBytes& bytes);
};

/// A message after the preface: its length in four bytes, the highest first, then the Envelope.
using LengthBytes = std::array<std::uint8_t, 4>;

/// Encodes one message with its length. kInvalidArgument if it is empty or longer than
/// kMaxMessageBytes.
Result<std::string> encode_message(const proto::Envelope& message);

/// Decodes the length of the next message of `from`. kProtocol if it is 0 or more than `most`.
Result<std::size_t> decode_length(const LengthBytes& bytes, const std::string& from,
                                  std::size_t most = kMaxMessageBytes);

/// Decodes the message in `payload`, which has a body. kProtocol if this release does not
/// understand it. `from` names the sender.
Result<proto::Envelope> decode_message(const std::string& payload, const std::string& from);

/// Returns the code that to_string() names so; kInternal for an unknown one, of another release.
Code code_of(std::string_view name);

/// Convert between Failure and Error. The text is made printable.
proto::Failure to_failure(const Error& error);
Error from_failure(const proto::Failure& failure);

/// Makes text from a peer safe to print: at most 4 KiB, control characters replaced by "?".
std::string printable(std::string_view text);

}  // namespace gcr::control

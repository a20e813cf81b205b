// How an Envelope lies on the wire: its length in four bytes, the highest first, then the Envelope.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "src/control/wire.h"

namespace gcr::control {

using LengthBytes = std::array<std::uint8_t, 4>;

/// The bytes of one message. kInvalidArgument if it is empty or longer than kMaxMessageBytes.
Result<std::string> encode_message(const proto::Envelope& message);

/// How long a message is that `from` announces. kProtocol if that cannot be, or is more than
/// `most`.
Result<std::size_t> decode_length(const LengthBytes& bytes, const std::string& from,
                                  std::size_t most = kMaxMessageBytes);

/// The message in `payload`, which has a body. kProtocol if this release does not understand it.
Result<proto::Envelope> decode_message(const std::string& payload, const std::string& from);

}  // namespace gcr::control

#include "src/control/framing.h"

#include <fmt/format.h>

namespace gcr::control {

Result<std::string> encode_message(const proto::Envelope& message) {
  const std::size_t length = message.ByteSizeLong();
  if (length == 0 || length > kMaxMessageBytes) {
    return Error(Code::kInvalidArgument, fmt::format("a control message has 1 to {} bytes, not {}",
                                                     kMaxMessageBytes, length));
  }
  constexpr std::size_t kLengthBytes = sizeof(LengthBytes);
  std::string frame(kLengthBytes + length, '\0');
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    frame[i] = static_cast<char>(length >> (8 * (kLengthBytes - 1 - i)));
  }
  message.SerializeToArray(frame.data() + kLengthBytes, static_cast<int>(length));
  return frame;
}

Result<std::size_t> decode_length(const LengthBytes& bytes, const std::string& from,
                                  std::size_t most) {
  std::size_t length = 0;
  for (const std::uint8_t byte : bytes) length = length << 8 | byte;
  if (length == 0 || length > most) {
    return Error(Code::kProtocol, fmt::format("{} announces a message of {} bytes; 1 to {} are "
                                              "allowed",
                                              from, length, most));
  }
  return length;
}

Result<proto::Envelope> decode_message(const std::string& payload, const std::string& from) {
  proto::Envelope message;
  if (!message.ParseFromString(payload) || message.body_case() == proto::Envelope::BODY_NOT_SET) {
    return Error(Code::kProtocol, fmt::format("{} sent a message that cannot be understood "
                                              "({} bytes)",
                                              from, payload.size()));
  }
  return message;
}

}  // namespace gcr::control

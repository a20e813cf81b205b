#include "transport/rdma/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "src/base/little_endian.h"
#include "transport/peer.h"

namespace gcr::transport::rdma {
namespace {

constexpr std::uint32_t kMagic = 0x52524347;  // "GCRR"
constexpr std::size_t kAnswerHeaderBytes = 8;

static_assert(kMessageHeaderBytes == 2 + 2 + 4 + 8 + 8 + 8 + 4 + 4);

/// Encodes `error` into `target` as encode_error() does; returns the length.
std::size_t encode_text(const Error& error, std::span<std::byte> target) {
  const std::string text = encode_error(error, target.size());
  std::memcpy(target.data(), text.data(), text.size());
  return text.size();
}

/// Whether the fields that the message's type does not use are zero.
bool is_plain(const Message& message) {
  switch (message.type) {
    case MessageType::kRegionKey:
      return true;
    case MessageType::kLanded:
      return message.key == 0;
    case MessageType::kRegionQuery:
      return message.places == 0 && message.key == 0 && message.offset == 0 && message.length == 0;
    case MessageType::kAcknowledged:
    case MessageType::kError:
    case MessageType::kEnd:
      return message.places == 0 && message.key == 0 && message.offset == 0 &&
             message.length == 0 && message.region == 0;
    case MessageType::kInvalid:
      break;
  }
  return false;
}

Status check_start(std::span<const std::byte> bytes, std::size_t at_least) {
  if (bytes.size() < at_least || load_little_endian<std::uint32_t>(bytes.data()) != kMagic) {
    return Error(Code::kProtocol, "the peer of an RDMA connection uses another protocol");
  }
  const auto version = load_little_endian<std::uint16_t>(&bytes[4]);
  if (version == kVersion) return {};
  return Error(Code::kUnsupported,
               fmt::format("the peer's RDMA connection has version {}, not {}", version, kVersion));
}

}  // namespace

std::size_t encode(const Message& message, std::span<std::byte> target) {
  std::uint32_t text_bytes = 0;
  if (message.error) {
    const auto room = target.subspan(kMessageHeaderBytes, kMaxErrorBytes);
    text_bytes = static_cast<std::uint32_t>(encode_text(*message.error, room));
  }
  store_little_endian(&target[0], static_cast<std::uint16_t>(message.type));
  store_little_endian(&target[2], message.places);
  store_little_endian(&target[4], message.region);
  store_little_endian(&target[8], message.number);
  store_little_endian(&target[16], message.offset);
  store_little_endian(&target[24], message.length);
  store_little_endian(&target[32], message.key);
  store_little_endian(&target[36], text_bytes);
  return kMessageHeaderBytes + text_bytes;
}

Result<Message> decode(std::span<const std::byte> bytes) {
  if (bytes.size() < kMessageHeaderBytes) {
    return Error(Code::kProtocol, fmt::format("the peer sent a message of {} bytes", bytes.size()));
  }
  Message message{.type = static_cast<MessageType>(load_little_endian<std::uint16_t>(&bytes[0])),
                  .places = load_little_endian<std::uint16_t>(&bytes[2]),
                  .region = load_little_endian<std::uint32_t>(&bytes[4]),
                  .number = load_little_endian<std::uint64_t>(&bytes[8]),
                  .offset = load_little_endian<std::uint64_t>(&bytes[16]),
                  .length = load_little_endian<std::uint64_t>(&bytes[24]),
                  .key = load_little_endian<std::uint32_t>(&bytes[32])};
  const auto text = bytes.subspan(kMessageHeaderBytes);
  if (load_little_endian<std::uint32_t>(&bytes[36]) != text.size() ||
      text.size() > kMaxErrorBytes || !is_plain(message) ||
      (message.type != MessageType::kError && !text.empty())) {
    return Error(Code::kProtocol,
                 fmt::format("the peer sent a malformed message of type {} and {} bytes",
                             static_cast<unsigned>(message.type), bytes.size()));
  }
  if (message.type == MessageType::kError) message.error = decode_error(text);
  return message;
}

std::array<std::byte, kHelloBytes> encode(const Hello& hello) {
  std::array<std::byte, kHelloBytes> bytes{};
  const std::size_t token_bytes = std::min(hello.token.size(), kMaxRdmaTokenBytes);
  store_little_endian(&bytes[0], kMagic);
  store_little_endian(&bytes[4], kVersion);
  store_little_endian(&bytes[6], hello.lane);
  store_little_endian(&bytes[8], hello.lanes);
  store_little_endian(&bytes[10], hello.depth);
  store_little_endian(&bytes[12], static_cast<std::uint16_t>(token_bytes));
  std::memcpy(&bytes[16], hello.token.data(), token_bytes);
  return bytes;
}

Result<Hello> decode_hello(std::span<const std::byte> bytes) {
  GCR_TRY(check_start(bytes, kHelloBytes));
  Hello hello{.lane = load_little_endian<std::uint16_t>(&bytes[6]),
              .lanes = load_little_endian<std::uint16_t>(&bytes[8]),
              .depth = load_little_endian<std::uint16_t>(&bytes[10]),
              .token = {}};
  const auto token_bytes = load_little_endian<std::uint16_t>(&bytes[12]);
  if (token_bytes > kMaxRdmaTokenBytes || load_little_endian<std::uint16_t>(&bytes[14]) != 0 ||
      hello.lanes > kMaxLanes || hello.lane >= hello.lanes || hello.depth == 0 ||
      hello.depth > kMaxDepth) {
    return Error(Code::kProtocol, "the peer's request for an RDMA connection is malformed");
  }
  hello.token.assign(reinterpret_cast<const char*>(&bytes[16]), token_bytes);
  return hello;
}

std::vector<std::byte> encode_answer(const std::optional<Error>& refusal) {
  std::vector<std::byte> bytes(kMaxAnswerBytes);
  std::size_t text_bytes = 0;
  if (refusal) text_bytes = encode_text(*refusal, std::span(bytes).subspan(kAnswerHeaderBytes));
  store_little_endian(&bytes[0], kMagic);
  store_little_endian(&bytes[4], kVersion);
  store_little_endian(&bytes[6], static_cast<std::uint16_t>(text_bytes));
  bytes.resize(kAnswerHeaderBytes + text_bytes);
  return bytes;
}

Result<std::optional<Error>> decode_answer(std::span<const std::byte> bytes) {
  GCR_TRY(check_start(bytes, kAnswerHeaderBytes));
  const auto text_bytes = load_little_endian<std::uint16_t>(&bytes[6]);
  const auto text = bytes.subspan(kAnswerHeaderBytes);
  if (text_bytes > text.size()) {
    return Error(Code::kProtocol, "the peer's answer to an RDMA connection is malformed");
  }
  if (text_bytes == 0) return std::optional<Error>();
  return std::optional<Error>(decode_error(text.first(text_bytes)));
}

}  // namespace gcr::transport::rdma

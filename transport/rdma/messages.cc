#include "transport/rdma/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace gcr::transport::rdma {
namespace {

constexpr std::uint32_t kMagic = 0x52524347;  // "GCRR"
constexpr std::size_t kAnswerHeaderBytes = 8;

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are");
static_assert(kMessageHeaderBytes == 2 + 2 + 4 + 8 + 8 + 8 + 4 + 4);

template <class Number>
void store(std::byte* at, Number value) {
  std::memcpy(at, &value, sizeof value);
}

template <class Number>
Number load(const std::byte* at) {
  Number value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// Code and sentence, cut to the size of `target`; gives their length.
std::size_t encode_text(const Error& error, std::span<std::byte> target) {
  store(target.data(), static_cast<std::uint16_t>(error.code()));
  const std::size_t length = std::min(error.message().size(), target.size() - 2);
  std::memcpy(target.data() + 2, error.message().data(), length);
  return 2 + length;
}

/// What the peer says: unknown codes become kProtocol, control characters '?'.
Error decode_text(std::span<const std::byte> text) {
  if (text.size() < 2) return Error(Code::kProtocol, "the peer sent an empty error");
  const auto number = load<std::uint16_t>(text.data());
  const bool known = number > 0 && number <= static_cast<std::uint16_t>(Code::kInternal);
  std::string sentence(reinterpret_cast<const char*>(text.data()) + 2, text.size() - 2);
  std::replace_if(
      sentence.begin(), sentence.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return Error(known ? static_cast<Code>(number) : Code::kProtocol, std::move(sentence));
}

/// Whether the fields that the type does not use are zero.
bool is_plain(const Message& message) {
  switch (message.type) {
    case MessageType::kRegionKey:
      return true;
    case MessageType::kLanded:
      return message.key == 0;
    case MessageType::kRegionQuery:
      return message.key == 0 && message.offset == 0 && message.length == 0;
    case MessageType::kAcknowledged:
    case MessageType::kError:
    case MessageType::kEnd:
      return message.key == 0 && message.offset == 0 && message.length == 0 && message.region == 0;
    case MessageType::kInvalid:
      break;
  }
  return false;
}

Status check_start(std::span<const std::byte> bytes, std::size_t at_least) {
  if (bytes.size() < at_least || load<std::uint32_t>(bytes.data()) != kMagic) {
    return Error(Code::kProtocol, "the peer of an RDMA connection speaks another protocol");
  }
  const auto version = load<std::uint16_t>(&bytes[4]);
  if (version == kVersion) return {};
  return Error(Code::kUnsupported,
               fmt::format("the RDMA connection speaks version {}, not {}", version, kVersion));
}

}  // namespace

std::size_t encode(const Message& message, std::span<std::byte> target) {
  std::uint32_t text_bytes = 0;
  if (message.error) {
    const auto room = target.subspan(kMessageHeaderBytes, kMaxTextBytes);
    text_bytes = static_cast<std::uint32_t>(encode_text(*message.error, room));
  }
  store(&target[0], static_cast<std::uint16_t>(message.type));
  store(&target[2], std::uint16_t{0});
  store(&target[4], message.region);
  store(&target[8], message.number);
  store(&target[16], message.offset);
  store(&target[24], message.length);
  store(&target[32], message.key);
  store(&target[36], text_bytes);
  return kMessageHeaderBytes + text_bytes;
}

Result<Message> decode(std::span<const std::byte> bytes) {
  if (bytes.size() < kMessageHeaderBytes) {
    return Error(Code::kProtocol, fmt::format("the peer sent a message of {} bytes", bytes.size()));
  }
  Message message{.type = static_cast<MessageType>(load<std::uint16_t>(&bytes[0])),
                  .region = load<std::uint32_t>(&bytes[4]),
                  .number = load<std::uint64_t>(&bytes[8]),
                  .offset = load<std::uint64_t>(&bytes[16]),
                  .length = load<std::uint64_t>(&bytes[24]),
                  .key = load<std::uint32_t>(&bytes[32])};
  const auto text = bytes.subspan(kMessageHeaderBytes);
  if (load<std::uint16_t>(&bytes[2]) != 0 || load<std::uint32_t>(&bytes[36]) != text.size() ||
      text.size() > kMaxTextBytes || !is_plain(message) ||
      (message.type != MessageType::kError && !text.empty())) {
    return Error(Code::kProtocol,
                 fmt::format("the peer sent a malformed message of type {} and {} bytes",
                             static_cast<unsigned>(message.type), bytes.size()));
  }
  if (message.type == MessageType::kError) message.error = decode_text(text);
  return message;
}

std::array<std::byte, kHelloBytes> encode(const Hello& hello) {
  std::array<std::byte, kHelloBytes> bytes{};
  const std::size_t token_bytes = std::min(hello.token.size(), kMaxRdmaTokenBytes);
  store(&bytes[0], kMagic);
  store(&bytes[4], kVersion);
  store(&bytes[6], hello.lane);
  store(&bytes[8], hello.lanes);
  store(&bytes[10], hello.depth);
  store(&bytes[12], static_cast<std::uint16_t>(token_bytes));
  std::memcpy(&bytes[16], hello.token.data(), token_bytes);
  return bytes;
}

Result<Hello> decode_hello(std::span<const std::byte> bytes) {
  GCR_TRY(check_start(bytes, kHelloBytes));
  Hello hello{.lane = load<std::uint16_t>(&bytes[6]),
              .lanes = load<std::uint16_t>(&bytes[8]),
              .depth = load<std::uint16_t>(&bytes[10]),
              .token = {}};
  const auto token_bytes = load<std::uint16_t>(&bytes[12]);
  if (token_bytes > kMaxRdmaTokenBytes || load<std::uint16_t>(&bytes[14]) != 0 ||
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
  store(&bytes[0], kMagic);
  store(&bytes[4], kVersion);
  store(&bytes[6], static_cast<std::uint16_t>(text_bytes));
  bytes.resize(kAnswerHeaderBytes + text_bytes);
  return bytes;
}

Result<std::optional<Error>> decode_answer(std::span<const std::byte> bytes) {
  GCR_TRY(check_start(bytes, kAnswerHeaderBytes));
  const auto text_bytes = load<std::uint16_t>(&bytes[6]);
  const auto text = bytes.subspan(kAnswerHeaderBytes);
  if (text_bytes > text.size()) {
    return Error(Code::kProtocol, "the peer's answer to an RDMA connection is malformed");
  }
  if (text_bytes == 0) return std::optional<Error>();
  return std::optional<Error>(decode_text(text.first(text_bytes)));
}

}  // namespace gcr::transport::rdma

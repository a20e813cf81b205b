#include "transport/tcp/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace gcr::transport {
namespace {

constexpr std::uint32_t kMagic = 0x31524347;  // "GCR1"

static_assert(4 + 2 + 2 + 4 + 4 + 8 + 8 == kHeaderBytes);
static_assert(sizeof(HeaderBytes) == kHeaderBytes);
static_assert(sizeof(HelloBytes) == kHelloBytes);
static_assert(sizeof(Uuid::bytes) == 16);

template <class Number>
void store(std::byte* to, Number value) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    to[i] = static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i));
  }
}

template <class Number>
Number load(const std::byte* from) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    value |= std::to_integer<std::uint64_t>(from[i]) << (8 * i);
  }
  return static_cast<Number>(value);
}

bool length_fits(FrameType type, std::uint32_t length) {
  switch (type) {
    case FrameType::kHello:
      return length == kHelloBytes;
    case FrameType::kWrite:
      return length > 0 && length <= kMaxFramePayloadBytes;
    case FrameType::kError:
      return length >= 2 && length <= kMaxErrorBytes;
    case FrameType::kWelcome:
    case FrameType::kFlush:
    case FrameType::kLanded:
    case FrameType::kEnd:
      return length == 0;
    case FrameType::kInvalid:
      break;
  }
  return false;
}

bool known(std::uint16_t type) {
  return type >= static_cast<std::uint16_t>(FrameType::kHello) &&
         type <= static_cast<std::uint16_t>(FrameType::kEnd);
}

}  // namespace

HeaderBytes encode(const FrameHeader& header) {
  HeaderBytes bytes{};
  store<std::uint32_t>(&bytes[0], kMagic);
  store(&bytes[4], static_cast<std::uint16_t>(header.type));
  store(&bytes[6], static_cast<std::uint16_t>(header.asks));
  store(&bytes[8], header.region);
  store(&bytes[12], header.length_bytes);
  store(&bytes[16], header.offset);
  store(&bytes[24], header.sequence);
  return bytes;
}

Result<FrameHeader> decode(const HeaderBytes& bytes) {
  if (load<std::uint32_t>(&bytes[0]) != kMagic) {
    return Error(Code::kProtocol, "the peer sent something that is not a frame");
  }
  const auto type = load<std::uint16_t>(&bytes[4]);
  const auto asks = load<std::uint16_t>(&bytes[6]);
  if (!known(type) || asks > 1) {
    return Error(Code::kProtocol, fmt::format("the peer sent a frame of unknown type {}", type));
  }
  FrameHeader header{.type = static_cast<FrameType>(type),
                     .asks = asks == 1,
                     .region = load<std::uint32_t>(&bytes[8]),
                     .length_bytes = load<std::uint32_t>(&bytes[12]),
                     .offset = load<std::uint64_t>(&bytes[16]),
                     .sequence = load<std::uint64_t>(&bytes[24])};
  if (!length_fits(header.type, header.length_bytes)) {
    return Error(Code::kProtocol, fmt::format("the peer sent a frame of type {} with {} bytes",
                                              type, header.length_bytes));
  }
  const bool addressed = header.asks || header.region != 0 || header.offset != 0;
  if (header.type != FrameType::kWrite && addressed) {
    return Error(Code::kProtocol,
                 fmt::format("the peer sent a frame of type {} with an address", type));
  }
  return header;
}

HelloBytes encode(const Hello& hello) {
  HelloBytes bytes{};
  store(&bytes[0], hello.version);
  store(&bytes[2], hello.lane);
  store(&bytes[4], hello.lanes);
  const std::size_t token_bytes = std::min(hello.token.size(), kMaxTokenBytes);
  store(&bytes[6], static_cast<std::uint16_t>(token_bytes));
  std::memcpy(&bytes[8], hello.session.bytes.data(), hello.session.bytes.size());
  std::memcpy(&bytes[24], hello.token.data(), token_bytes);
  return bytes;
}

Result<Hello> decode(const HelloBytes& bytes) {
  const auto version = load<std::uint16_t>(&bytes[0]);
  if (version != kFrameVersion) {
    return Error(Code::kUnsupported, fmt::format("the data connection speaks version {}, not {}",
                                                 version, kFrameVersion));
  }
  Hello hello{.version = version,
              .lane = load<std::uint16_t>(&bytes[2]),
              .lanes = load<std::uint16_t>(&bytes[4]),
              .session = {},
              .token = {}};
  const auto token_bytes = load<std::uint16_t>(&bytes[6]);
  if (token_bytes > kMaxTokenBytes || hello.lane >= hello.lanes) {
    return Error(Code::kProtocol, "the peer's first frame is malformed");
  }
  std::memcpy(hello.session.bytes.data(), &bytes[8], hello.session.bytes.size());
  hello.token.assign(reinterpret_cast<const char*>(&bytes[24]), token_bytes);
  return hello;
}

std::string encode_error(const Error& error) {
  std::string payload(2, '\0');
  store(reinterpret_cast<std::byte*>(payload.data()), static_cast<std::uint16_t>(error.code()));
  payload += error.message().substr(0, kMaxErrorBytes - payload.size());
  return payload;
}

Error decode_error(std::span<const std::byte> payload) {
  if (payload.size() < 2) return Error(Code::kProtocol, "the peer sent an empty error");
  const auto number = load<std::uint16_t>(payload.data());
  const bool valid = number > 0 && number <= static_cast<std::uint16_t>(Code::kInternal);
  std::string text(reinterpret_cast<const char*>(payload.data()) + 2, payload.size() - 2);
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return Error(valid ? static_cast<Code>(number) : Code::kProtocol, std::move(text));
}

}  // namespace gcr::transport

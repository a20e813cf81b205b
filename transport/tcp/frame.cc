#include "transport/tcp/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "src/base/little_endian.h"

namespace gcr::transport {
namespace {

constexpr std::uint32_t kMagic = 0x31524347;  // "GCR1"

static_assert(4 + 2 + 2 + 4 + 4 + 8 + 8 == kHeaderBytes);
static_assert(sizeof(Uuid::bytes) == 16);

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
  store_little_endian<std::uint32_t>(&bytes[0], kMagic);
  store_little_endian(&bytes[4], static_cast<std::uint16_t>(header.type));
  store_little_endian(&bytes[6], static_cast<std::uint16_t>(header.asks));
  store_little_endian(&bytes[8], header.region);
  store_little_endian(&bytes[12], header.length_bytes);
  store_little_endian(&bytes[16], header.offset);
  store_little_endian(&bytes[24], header.sequence);
  return bytes;
}

Result<FrameHeader> decode(const HeaderBytes& bytes) {
  if (load_little_endian<std::uint32_t>(&bytes[0]) != kMagic) {
    return Error(Code::kProtocol, "the peer sent bytes that are not a frame");
  }
  const auto type = load_little_endian<std::uint16_t>(&bytes[4]);
  const auto asks = load_little_endian<std::uint16_t>(&bytes[6]);
  if (!known(type) || asks > 1) {
    return Error(Code::kProtocol, fmt::format("the peer sent a frame of unknown type {}", type));
  }
  FrameHeader header{.type = static_cast<FrameType>(type),
                     .asks = asks == 1,
                     .region = load_little_endian<std::uint32_t>(&bytes[8]),
                     .length_bytes = load_little_endian<std::uint32_t>(&bytes[12]),
                     .offset = load_little_endian<std::uint64_t>(&bytes[16]),
                     .sequence = load_little_endian<std::uint64_t>(&bytes[24])};
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
  store_little_endian(&bytes[0], hello.version);
  store_little_endian(&bytes[2], hello.lane);
  store_little_endian(&bytes[4], hello.lanes);
  const std::size_t token_bytes = std::min(hello.token.size(), kMaxTokenBytes);
  store_little_endian(&bytes[6], static_cast<std::uint16_t>(token_bytes));
  std::memcpy(&bytes[8], hello.session.bytes.data(), hello.session.bytes.size());
  std::memcpy(&bytes[24], hello.token.data(), token_bytes);
  return bytes;
}

Result<Hello> decode(const HelloBytes& bytes) {
  const auto version = load_little_endian<std::uint16_t>(&bytes[0]);
  if (version != kFrameVersion) {
    return Error(
        Code::kUnsupported,
        fmt::format("the peer's data connection has version {}, not {}", version, kFrameVersion));
  }
  Hello hello{.version = version,
              .lane = load_little_endian<std::uint16_t>(&bytes[2]),
              .lanes = load_little_endian<std::uint16_t>(&bytes[4]),
              .session = {},
              .token = {}};
  const auto token_bytes = load_little_endian<std::uint16_t>(&bytes[6]);
  if (token_bytes > kMaxTokenBytes || hello.lane >= hello.lanes) {
    return Error(Code::kProtocol, "the peer's first frame is malformed");
  }
  std::memcpy(hello.session.bytes.data(), &bytes[8], hello.session.bytes.size());
  hello.token.assign(reinterpret_cast<const char*>(&bytes[24]), token_bytes);
  return hello;
}

}  // namespace gcr::transport

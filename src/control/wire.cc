#include "src/control/wire.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

namespace gcr::control {
namespace {

constexpr std::array<std::uint8_t, 4> kMagic = {'G', 'C', 'R', 'M'};
constexpr std::uint8_t kPrefaceVersion = 1;
constexpr std::size_t kMaxPrintableBytes = 4096;

/// The layout of a preface on the wire; all fields are single bytes, so that there is no padding.
struct PrefaceLayout {
  std::array<std::uint8_t, 4> magic = kMagic;
  std::uint8_t version = kPrefaceVersion;
  std::uint8_t kind = 0;
  std::array<std::uint8_t, 2> reserved{};
  Uuid migration;
};
static_assert(sizeof(PrefaceLayout) == kPrefaceBytes);

}  // namespace

PrefaceBytes Preface::encode() const {
  return std::bit_cast<PrefaceBytes>(
      PrefaceLayout{.kind = static_cast<std::uint8_t>(kind), .migration = migration});
}

Result<Preface> Preface::decode(const PrefaceBytes& bytes) {
  const auto layout = std::bit_cast<PrefaceLayout>(bytes);
  if (layout.magic != kMagic) {
    return Error(Code::kProtocol,
                 fmt::format("not a connection of gcr-migrate: it starts with {:02x}",
                             fmt::join(layout.magic, " ")));
  }
  if (layout.version != kPrefaceVersion) {
    return Error(Code::kProtocol,
                 fmt::format("a connection with preface version {}; this is version {}",
                             layout.version, kPrefaceVersion));
  }
  const auto kind = static_cast<ConnectionKind>(layout.kind);
  if (kind != ConnectionKind::kControl && kind != ConnectionKind::kData) {
    return Error(Code::kProtocol, fmt::format("a connection of unknown kind {}", layout.kind));
  }
  if (layout.reserved != std::array<std::uint8_t, 2>{}) {
    return Error(Code::kProtocol, "a preface whose reserved bytes are not zero");
  }
  return Preface{kind, layout.migration};
}

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

proto::Failure to_failure(const Error& error) {
  proto::Failure failure;
  failure.set_code(std::string(to_string(error.code())));
  failure.set_message(printable(error.message()));
  return failure;
}

Code code_of(std::string_view name) {
  for (int value = static_cast<int>(Code::kInvalidArgument);
       value <= static_cast<int>(Code::kInternal); ++value) {
    if (to_string(static_cast<Code>(value)) == name) return static_cast<Code>(value);
  }
  return Code::kInternal;
}

Error from_failure(const proto::Failure& failure) {
  return Error(code_of(failure.code()), printable(failure.message()));
}

std::string printable(std::string_view text) {
  std::string result(text.substr(0, kMaxPrintableBytes));
  std::ranges::replace_if(
      result, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return result;
}

}  // namespace gcr::control

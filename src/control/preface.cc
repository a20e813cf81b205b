#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "src/control/wire.h"

namespace gcr::control {
namespace {

constexpr std::array<std::uint8_t, 4> kMagic = {'G', 'C', 'R', 'M'};
constexpr std::uint8_t kPrefaceVersion = 1;
constexpr std::size_t kVersionAt = 4;
constexpr std::size_t kKindAt = 5;
constexpr std::size_t kReservedAt = 6;
constexpr std::size_t kMigrationAt = 8;
static_assert(kMigrationAt + sizeof(Uuid::bytes) == kPrefaceBytes);

}  // namespace

std::array<std::uint8_t, kPrefaceBytes> Preface::encode() const {
  std::array<std::uint8_t, kPrefaceBytes> bytes{};
  std::ranges::copy(kMagic, bytes.begin());
  bytes[kVersionAt] = kPrefaceVersion;
  bytes[kKindAt] = static_cast<std::uint8_t>(kind);
  std::ranges::copy(migration.bytes, bytes.begin() + kMigrationAt);
  return bytes;
}

Result<Preface> Preface::decode(std::span<const std::uint8_t, kPrefaceBytes> bytes) {
  const auto magic = bytes.first<kMagic.size()>();
  if (!std::ranges::equal(magic, kMagic)) {
    return Error(Code::kProtocol,
                 fmt::format("not a connection of gcr-migrate: it starts with {:02x}",
                             fmt::join(magic, " ")));
  }
  if (bytes[kVersionAt] != kPrefaceVersion) {
    return Error(Code::kProtocol,
                 fmt::format("a connection with preface version {}; this is version {}",
                             bytes[kVersionAt], kPrefaceVersion));
  }
  const auto kind = static_cast<ConnectionKind>(bytes[kKindAt]);
  if (kind != ConnectionKind::kControl && kind != ConnectionKind::kData) {
    return Error(Code::kProtocol, fmt::format("a connection of unknown kind {}", bytes[kKindAt]));
  }
  if (bytes[kReservedAt] != 0 || bytes[kReservedAt + 1] != 0) {
    return Error(Code::kProtocol, "a preface whose reserved bytes are not zero");
  }
  Preface preface{kind, {}};
  std::ranges::copy(bytes.subspan<kMigrationAt>(), preface.migration.bytes.begin());
  return preface;
}

}  // namespace gcr::control

#include "migrate-agent/commit/journal/format.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "src/base/little_endian.h"
#include "src/base/uuid.h"
#include "src/base/zeros.h"

namespace gcr::journal {
namespace {

constexpr std::array<char, 8> kMagic{'G', 'C', 'R', 'J', 'R', 'N', 'L', '\n'};
constexpr std::uint32_t kVersion = 1;

constexpr std::byte kBegin{'R'};
constexpr std::byte kEnd{'\n'};
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kLengthAt = 2;
constexpr std::size_t kChecksumAt = 4;
constexpr std::size_t kBodyAt = kChecksumAt + sizeof(Checksum);
constexpr std::size_t kMaxBodyBytes = kSlotBytes - kBodyAt - 1;

using SlotView = std::span<const std::byte, kSlotBytes>;

Checksum crc_of(SlotView slot) {
  return static_cast<Checksum>(
      crc32_z(0, reinterpret_cast<const Bytef*>(slot.data()), slot.size()));
}

Error damage(std::size_t offset, std::string_view what) {
  return {Code::kDataLoss, fmt::format("at byte {}: {}", offset, what)};
}

struct Unsealed {
  Record record;
  Checksum checksum{};
};

/// Decodes a slot that was written completely. The Error does not have the offset.
Result<Unsealed> unseal(SlotView view, Checksum previous) {
  Unsealed unsealed;
  unsealed.checksum = load_little_endian<Checksum>(&view[kChecksumAt]);
  Slot slot;
  std::ranges::copy(view, slot.begin());
  store_little_endian(&slot[kChecksumAt], previous);
  if (crc_of(slot) != unsealed.checksum) return Error(Code::kDataLoss, "a wrong checksum");
  const auto length = load_little_endian<std::uint16_t>(&slot[kLengthAt]);
  if (slot.front() != kBegin || slot.back() != kEnd || length > kMaxBodyBytes ||
      !unsealed.record.ParseFromArray(slot.data() + kBodyAt, length) ||
      unsealed.record.body_case() == Record::BODY_NOT_SET) {
    return Error(Code::kDataLoss, "not a record that this release knows");
  }
  return unsealed;
}

Status check_order(const std::vector<Record>& earlier, const Record& record) {
  if (earlier.empty() != record.has_began()) {
    return Error(Code::kDataLoss, "Began must be the first record, and only that");
  }
  if (!record.has_began()) return {};
  const Began& began = record.began();
  if (began.migration_id().size() != sizeof(Uuid::bytes)) {
    return Error(Code::kDataLoss, fmt::format("a migration id of {} bytes, not {}",
                                              began.migration_id().size(), sizeof(Uuid::bytes)));
  }
  if (began.role() != Began::SOURCE && began.role() != Began::DESTINATION) {
    return Error(Code::kDataLoss,
                 fmt::format("no role has the number {}", static_cast<int>(began.role())));
  }
  return {};
}

std::optional<Error> check_header(std::span<const std::byte> file) {
  if (file.size() < kSlotBytes || std::memcmp(file.data(), kMagic.data(), kMagic.size()) != 0) {
    return damage(0, "the file is not a journal");
  }
  const auto slot = file.first<kSlotBytes>();
  const auto version = load_little_endian<std::uint32_t>(&slot[kVersionAt]);
  if (version != kVersion) {
    return damage(kVersionAt, fmt::format("version {} of the format; this release reads {}",
                                          version, kVersion));
  }
  if (!std::ranges::equal(slot, header().slot)) return damage(0, "a damaged header");
  return std::nullopt;
}

/// Decodes the slot at `offset`; `rest` is the file after it. Returns false at the end of the
/// records.
bool read_slot(SlotView slot, std::span<const std::byte> rest, std::size_t offset, Contents& out) {
  if (slot.front() == std::byte{0} || slot.back() == std::byte{0}) {
    if (!is_zero(rest)) {
      out.damage = damage(offset, "an incomplete record is followed by data");
    } else if (!is_zero(slot)) {
      out.torn = true;
    }
    return false;
  }
  auto unsealed = unseal(slot, out.checksum);
  const Status good = unsealed ? check_order(out.records, unsealed->record) : Status();
  if (!unsealed || !good) {
    out.damage = damage(offset, (unsealed ? good.error() : unsealed.error()).message());
    return false;
  }
  out.records.push_back(std::move(unsealed->record));
  out.checksum = unsealed->checksum;
  return true;
}

}  // namespace

Sealed header() {
  Sealed sealed;
  std::memcpy(sealed.slot.data(), kMagic.data(), kMagic.size());
  store_little_endian(&sealed.slot[kVersionAt], kVersion);
  sealed.checksum = crc_of(sealed.slot);
  return sealed;
}

Result<Sealed> seal(const Record& record, Checksum previous) {
  const std::size_t size_bytes = record.ByteSizeLong();
  if (record.body_case() == Record::BODY_NOT_SET || size_bytes > kMaxBodyBytes) {
    return Error(Code::kInvalidArgument,
                 fmt::format("a record without content or of more than {} bytes ({})",
                             kMaxBodyBytes, size_bytes));
  }
  Sealed sealed;
  sealed.slot.front() = kBegin;
  sealed.slot.back() = kEnd;
  store_little_endian(&sealed.slot[kLengthAt], static_cast<std::uint16_t>(size_bytes));
  record.SerializeToArray(sealed.slot.data() + kBodyAt, static_cast<int>(size_bytes));
  store_little_endian(&sealed.slot[kChecksumAt], previous);
  sealed.checksum = crc_of(sealed.slot);
  store_little_endian(&sealed.slot[kChecksumAt], sealed.checksum);
  return sealed;
}

std::vector<Record> salvage(std::span<const std::byte> file) {
  std::vector<Record> records;
  Checksum previous = header().checksum;
  for (std::size_t at = kSlotBytes; at + kSlotBytes <= std::min(file.size(), kFileBytes);
       at += kSlotBytes) {
    const auto slot = file.subspan(at).first<kSlotBytes>();
    if (auto good = unseal(slot, previous)) records.push_back(std::move(good->record));
    previous = load_little_endian<Checksum>(&slot[kChecksumAt]);
  }
  return records;
}

Result<std::vector<std::byte>> assemble(std::span<const Record> records) {
  if (records.size() >= kSlots) return Error(Code::kInvalidArgument, "too many records");
  std::vector<std::byte> file(kFileBytes);
  auto end = std::ranges::copy(header().slot, file.begin()).out;
  Checksum previous = header().checksum;
  for (const Record& record : records) {
    GCR_ASSIGN(const Sealed sealed, seal(record, previous));
    end = std::ranges::copy(sealed.slot, end).out;
    previous = sealed.checksum;
  }
  return file;
}

Contents parse(std::span<const std::byte> file) {
  Contents contents;
  contents.damage = check_header(file);
  if (contents.damage) return contents;
  contents.checksum = header().checksum;
  std::size_t offset = kSlotBytes;
  while (offset < kFileBytes && offset + kSlotBytes <= file.size()) {
    const auto slot = file.subspan(offset).first<kSlotBytes>();
    if (!read_slot(slot, file.subspan(offset + kSlotBytes), offset, contents)) break;
    offset += kSlotBytes;
  }
  if (contents.damage) return contents;
  if (file.size() != kFileBytes) {
    contents.damage =
        damage(offset, fmt::format("the file has {} bytes, not {}", file.size(), kFileBytes));
  } else if (contents.records.empty()) {
    contents.damage = damage(offset, "no record");
  }
  return contents;
}

}  // namespace gcr::journal

#include "migrate-agent/transfer/images/block.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "src/base/little_endian.h"
#include "src/base/zeros.h"

namespace gcr::images {
namespace {

constexpr std::uint32_t kMagic = 0x31494347;  // "GCI1"
constexpr std::uint16_t kShared = kMaxMemories;

Error malformed(std::string_view what) {
  return Error(Code::kProtocol, fmt::format("a block of an image has {}", what));
}

}  // namespace

std::size_t BlockHeader::payload_bytes() const {
  const std::size_t pages = present.count();
  if (pages == 0) return 0;
  const std::size_t last = (raw_bytes - 1) / kPageBytes;
  const std::size_t short_by = present[last] ? (last + 1) * kPageBytes - raw_bytes : 0;
  return pages * kPageBytes - short_by;
}

BlockHeaderBytes encode(const BlockHeader& header) {
  BlockHeaderBytes bytes{};
  store_little_endian(&bytes[0], kMagic);
  store_little_endian(&bytes[4], header.file);
  store_little_endian(&bytes[8], header.offset);
  store_little_endian(&bytes[16], header.raw_bytes);
  store_little_endian(&bytes[20], header.stored_bytes);
  store_little_endian(&bytes[24], static_cast<std::uint16_t>(header.codec));
  const std::uint16_t shared = header.shared ? kShared : 0;
  store_little_endian(&bytes[26], static_cast<std::uint16_t>(header.memory | shared));
  store_little_endian(&bytes[28], header.round);
  for (std::size_t page = 0; page < kPagesPerWindow; ++page) {
    if (header.present[page]) bytes[32 + page / 8] |= std::byte{1} << (page % 8);
  }
  return bytes;
}

Result<BlockHeader> decode(const BlockHeaderBytes& bytes) {
  BlockHeader header;
  header.file = load_little_endian<std::uint32_t>(&bytes[4]);
  header.offset = load_little_endian<std::uint64_t>(&bytes[8]);
  header.raw_bytes = load_little_endian<std::uint32_t>(&bytes[16]);
  header.stored_bytes = load_little_endian<std::uint32_t>(&bytes[20]);
  header.codec = static_cast<store::Codec>(load_little_endian<std::uint16_t>(&bytes[24]));
  const auto memory = load_little_endian<std::uint16_t>(&bytes[26]);
  header.memory = memory & (kShared - 1);
  header.shared = (memory & kShared) != 0;
  header.round = load_little_endian<std::uint32_t>(&bytes[28]);
  for (std::size_t page = 0; page < kPagesPerWindow; ++page) {
    header.present[page] = (bytes[32 + page / 8] & std::byte{1} << (page % 8)) != std::byte{0};
  }
  if (load_little_endian<std::uint32_t>(&bytes[0]) != kMagic) return malformed("no magic");
  if (header.file >= kMaxFiles) return malformed("too high a file id");
  if (header.offset % kWindowBytes != 0 || header.offset >= kMaxFileBytes) {
    return malformed("an offset that cannot be");
  }
  if (header.raw_bytes == 0 || header.raw_bytes > kWindowBytes) {
    return malformed("a length that cannot be");
  }
  if (header.round >= kMaxRounds) return malformed("too high a round");
  if (header.shared && header.memory == 0) return malformed("a shared memory without a number");
  const std::size_t pages = (header.raw_bytes + kPageBytes - 1) / kPageBytes;
  if (header.present.none() || (header.present >> pages).any()) {
    return malformed("pages that cannot be");
  }
  const std::size_t payload = header.payload_bytes();
  switch (header.codec) {
    case store::Codec::kNone:
      if (header.stored_bytes != payload) return malformed("a payload of another length");
      return header;
    case store::Codec::kLz4:
    case store::Codec::kZstd:
      if (header.stored_bytes == 0 || header.stored_bytes >= payload) {
        return malformed("a compressed payload that is no shorter");
      }
      return header;
    case store::Codec::kInvalid:
      break;
  }
  return malformed("an unknown codec");
}

PresentPages pages_with_data(std::span<const std::byte> window, const PresentPages& pages) {
  PresentPages with_data;
  for (std::size_t at = 0; at < window.size(); at += kPageBytes) {
    if (!pages[at / kPageBytes]) continue;
    const std::size_t size = std::min(kPageBytes, window.size() - at);
    with_data[at / kPageBytes] = !is_zero(window.subspan(at, size));
  }
  return with_data;
}

void pack(std::span<std::byte> window, const PresentPages& pages) {
  std::size_t packed = 0;
  for (std::size_t at = 0; at < window.size(); at += kPageBytes) {
    if (!pages[at / kPageBytes]) continue;
    const std::size_t size = std::min(kPageBytes, window.size() - at);
    if (packed != at) std::memcpy(window.data() + packed, window.data() + at, size);
    packed += size;
  }
}

}  // namespace gcr::images

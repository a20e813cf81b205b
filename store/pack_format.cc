#include "store/pack_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "src/base/little_endian.h"
#include "src/base/zeros.h"
#include "src/control/trust.h"

namespace gcr::store {
namespace {

constexpr std::string_view kMagic = "GCRPACK1";
constexpr std::string_view kEndMagic = "GCRINDX1";

using Sum = std::array<std::byte, 32>;

Sum sha256(std::span<const std::byte> first, std::span<const std::byte> second) {
  thread_local const control::Openssl<EVP_MD_CTX> context(EVP_MD_CTX_new());
  thread_local EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  Sum sum;
  if (!context || EVP_DigestInit_ex2(context.get(), algorithm, nullptr) != 1 ||
      EVP_DigestUpdate(context.get(), first.data(), first.size()) != 1 ||
      EVP_DigestUpdate(context.get(), second.data(), second.size()) != 1 ||
      EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(sum.data()), nullptr) !=
          1) {
    std::abort();  // SHA-256 is always available, so memory is exhausted
  }
  return sum;
}

bool begins_with(std::span<const std::byte> bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

Error damaged(std::string what) { return Error(Code::kDataLoss, std::move(what)); }

bool is_possible(const Location& at, const PackEnd& end) {
  const bool is_placed = at.offset >= kPackHeaderBytes && at.offset % kPlaceBytes == 0 &&
                         at.offset <= end.index_offset &&
                         at.stored_bytes <= end.index_offset - at.offset;
  const bool is_sized =
      at.raw_bytes >= 1 && at.raw_bytes <= kMaxContentBytes && at.stored_bytes >= 1;
  switch (at.codec) {
    case Codec::kNone:
      return is_placed && is_sized && at.stored_bytes == at.raw_bytes;
    case Codec::kLz4:
    case Codec::kZstd:
      return is_placed && is_sized && at.stored_bytes < at.raw_bytes;
    default:
      return false;
  }
}

}  // namespace

ContentName name_of(const Key& key, std::span<const std::byte> bytes) { return sha256(key, bytes); }

std::array<std::byte, kPackHeaderBytes> pack_header() {
  std::array<std::byte, kPackHeaderBytes> header{};
  std::memcpy(header.data(), kMagic.data(), kMagic.size());
  return header;
}

bool is_pack_header(std::span<const std::byte> bytes) {
  return bytes.size() == kPackHeaderBytes && begins_with(bytes, kMagic) &&
         is_zero(bytes.subspan(kMagic.size()));
}

std::vector<std::byte> encode_index(const std::map<ContentName, Location>& index,
                                    std::uint64_t offset) {
  std::vector<std::byte> bytes(index.size() * kIndexEntryBytes + kPackEndBytes);
  std::byte* to = bytes.data();
  for (const auto& [name, location] : index) {
    std::memcpy(to, name.data(), name.size());
    store_little_endian(to + 32, location.offset);
    store_little_endian(to + 40, location.stored_bytes);
    store_little_endian(to + 44, location.raw_bytes);
    store_little_endian(to + 48, static_cast<std::uint16_t>(location.codec));
    to += kIndexEntryBytes;
  }
  const Sum sum = sha256(std::span(bytes).first(index.size() * kIndexEntryBytes), {});
  std::memcpy(to, kEndMagic.data(), kEndMagic.size());
  store_little_endian(to + 8, offset);
  store_little_endian(to + 16, static_cast<std::uint64_t>(index.size()));
  std::memcpy(to + 24, sum.data(), sum.size());
  return bytes;
}

Result<PackEnd> parse_pack_end(std::span<const std::byte> bytes, std::uint64_t file_bytes) {
  if (bytes.size() != kPackEndBytes || !begins_with(bytes, kEndMagic) ||
      !is_zero(bytes.subspan(56))) {
    return damaged("it has no end: it was never finished, or is truncated");
  }
  PackEnd end;
  end.index_offset = load_little_endian<std::uint64_t>(&bytes[8]);
  end.entries = load_little_endian<std::uint64_t>(&bytes[16]);
  std::memcpy(end.index_sum.data(), &bytes[24], end.index_sum.size());
  if (end.entries > kMaxPackEntries || end.index_offset < kPackHeaderBytes ||
      end.index_offset > file_bytes ||
      file_bytes - end.index_offset != end.index_bytes() + kPackEndBytes) {
    return damaged(fmt::format("an index of {} entries at {} does not fit {} bytes", end.entries,
                               end.index_offset, file_bytes));
  }
  return end;
}

Result<std::vector<IndexEntry>> parse_index(std::span<const std::byte> bytes, const PackEnd& end) {
  if (bytes.size() != end.index_bytes() || sha256(bytes, {}) != end.index_sum) {
    return damaged("its index was altered");
  }
  std::vector<IndexEntry> index(end.entries);
  for (std::size_t i = 0; i < index.size(); ++i) {
    const auto from = bytes.subspan(i * kIndexEntryBytes, kIndexEntryBytes);
    IndexEntry& entry = index[i];
    std::memcpy(entry.name.data(), from.data(), entry.name.size());
    entry.location.offset = load_little_endian<std::uint64_t>(&from[32]);
    entry.location.stored_bytes = load_little_endian<std::uint32_t>(&from[40]);
    entry.location.raw_bytes = load_little_endian<std::uint32_t>(&from[44]);
    entry.location.codec = static_cast<Codec>(load_little_endian<std::uint16_t>(&from[48]));
    const bool is_ascending = i == 0 || index[i - 1].name < entry.name;
    if (!is_ascending || !is_possible(entry.location, end) || !is_zero(from.subspan(50))) {
      return damaged(fmt::format("entry {} of its index is invalid", i));
    }
  }
  return index;
}

Status decode(const Key& key, const ContentName& name, const Location& location,
              std::span<const std::byte> stored, std::span<std::byte> out) {
  if (out.size() != location.raw_bytes || stored.size() != location.stored_bytes) {
    return damaged(
        fmt::format("a content has {} bytes instead of {}", location.raw_bytes, out.size()));
  }
  if (location.codec != Codec::kNone) {
    GCR_TRY(decompress(location.codec, stored, out));
  } else if (stored.data() != out.data()) {
    std::ranges::copy(stored, out.begin());
  }
  if (name_of(key, out) == name) return {};
  return damaged(fmt::format("the {} bytes at {} do not match their content's name",
                             location.stored_bytes, location.offset));
}

}  // namespace gcr::store

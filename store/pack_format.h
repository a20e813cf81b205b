// Encoding and decoding of packs (pack.h), without file access.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "src/base/result.h"
#include "src/base/units.h"
#include "store/codec.h"

namespace gcr::store {

inline constexpr std::uint32_t kMaxContentBytes = 2 * kMiB;
inline constexpr std::uint64_t kPackHeaderBytes = 4096;
inline constexpr std::uint64_t kPlaceBytes = 512;  ///< contents lie at multiples of it
inline constexpr std::uint64_t kIndexEntryBytes = 64;
inline constexpr std::uint64_t kPackEndBytes = 64;
/// The most entries of one pack; an index has at most 256 MiB.
inline constexpr std::uint64_t kMaxPackEntries = 4 * 1024 * 1024;

using Key = std::array<std::byte, 32>;
using ContentName = std::array<std::byte, 32>;

/// Computes the name of a content. Any thread.
ContentName name_of(const Key& key, std::span<const std::byte> bytes);

/// The location of a content.
struct Location {
  std::uint32_t pack = 0;  ///< the caller's number of the pack
  std::uint64_t offset = 0;
  std::uint32_t stored_bytes = 0;
  std::uint32_t raw_bytes = 0;
  Codec codec = Codec::kNone;
};

struct IndexEntry {
  ContentName name;
  Location location;
};

/// The last 64 bytes of a pack.
struct PackEnd {
  std::uint64_t index_offset = 0;
  std::uint64_t entries = 0;
  std::array<std::byte, 32> index_sum{};

  std::uint64_t index_bytes() const { return entries * kIndexEntryBytes; }
};

std::array<std::byte, kPackHeaderBytes> pack_header();
bool is_pack_header(std::span<const std::byte> bytes);

/// Encodes the index and the end of a pack, to be written at `offset`, behind all contents.
std::vector<std::byte> encode_index(const std::map<ContentName, Location>& index,
                                    std::uint64_t offset);

/// Parses the last kPackEndBytes of a file of `file_bytes`. kDataLoss: the pack was never finished
/// or is damaged. On success the index is within the file and its limit.
Result<PackEnd> parse_pack_end(std::span<const std::byte> bytes, std::uint64_t file_bytes);

/// Parses an index. On success entries ascend by name, and each content has a known codec and lies
/// in the pack before the index. Else kDataLoss.
Result<std::vector<IndexEntry>> parse_index(std::span<const std::byte> bytes, const PackEnd& end);

/// Decompresses `stored`, the bytes at `location`, into `out`, and verifies them by `name`.
/// `stored` must not change meanwhile. kDataLoss.
Status decode(const Key& key, const ContentName& name, const Location& location,
              std::span<const std::byte> stored, std::span<std::byte> out);

}  // namespace gcr::store

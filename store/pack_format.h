// The bytes of a pack (pack.h), apart from files.
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
/// Of one pack; so an index has at most 256 MiB.
inline constexpr std::uint64_t kMaxPackEntries = 4 * 1024 * 1024;

using Key = std::array<std::byte, 32>;
using ContentName = std::array<std::byte, 32>;

/// Any thread.
ContentName name_of(const Key& key, std::span<const std::byte> bytes);

/// Where a content lies.
struct Location {
  std::uint32_t pack = 0;  ///< the caller's number for the pack
  std::uint64_t offset = 0;
  std::uint32_t stored_bytes = 0;
  std::uint32_t raw_bytes = 0;
  Codec codec = Codec::kNone;
};

struct IndexEntry {
  ContentName name;
  Location location;
};

/// The end of a pack.
struct PackEnd {
  std::uint64_t index_offset = 0;
  std::uint64_t entries = 0;
  std::array<std::byte, 32> index_sum{};

  std::uint64_t index_bytes() const { return entries * kIndexEntryBytes; }
};

std::array<std::byte, kPackHeaderBytes> pack_header();
bool is_pack_header(std::span<const std::byte> bytes);

/// The index and the end behind it, for contents that end before `offset`.
std::vector<std::byte> encode_index(const std::map<ContentName, Location>& index,
                                    std::uint64_t offset);

/// The last kPackEndBytes of a file of `file_bytes`. kDataLoss: then the pack was never finished,
/// or is damaged. On success the index is within the file and its limit.
Result<PackEnd> parse_pack_end(std::span<const std::byte> bytes, std::uint64_t file_bytes);

/// Ascending by name, each content within the pack and before the index, of a known codec.
/// kDataLoss.
Result<std::vector<IndexEntry>> parse_index(std::span<const std::byte> bytes, const PackEnd& end);

/// Fills `out` from what a pack has at `location`, and proves it by its name. `stored` must not
/// change meanwhile. kDataLoss.
Status decode(const Key& key, const ContentName& name, const Location& location,
              std::span<const std::byte> stored, std::span<std::byte> out);

}  // namespace gcr::store

// Sets of addresses: ranges that are ascending and disjoint.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/address_range.h"

namespace gcr {

/// What is in both.
inline std::vector<AddressRange> common(std::span<const AddressRange> one,
                                        std::span<const AddressRange> other) {
  std::vector<AddressRange> both;
  while (!one.empty() && !other.empty()) {
    const std::uint64_t start = std::max(one.front().start, other.front().start);
    const std::uint64_t end = std::min(one.front().end, other.front().end);
    if (start < end) both.push_back({start, end});
    auto& first_to_end = one.front().end < other.front().end ? one : other;
    first_to_end = first_to_end.subspan(1);
  }
  return both;
}

/// What is in `ranges` and not in `taken`.
inline std::vector<AddressRange> without(std::span<const AddressRange> ranges,
                                         std::span<const AddressRange> taken) {
  std::vector<AddressRange> rest;
  for (AddressRange range : ranges) {
    while (!taken.empty() && taken.front().end <= range.start) taken = taken.subspan(1);
    for (const AddressRange& one : taken) {
      if (one.start >= range.end) break;
      if (one.start > range.start) rest.push_back({range.start, one.start});
      range.start = std::max(range.start, std::min(one.end, range.end));
    }
    if (range.start < range.end) rest.push_back(range);
  }
  return rest;
}

/// Adds a range behind all others, to the last of them if it touches that.
inline void append(std::vector<AddressRange>& ranges, const AddressRange& range) {
  if (range.start == range.end) return;
  if (!ranges.empty() && ranges.back().end == range.start) {
    ranges.back().end = range.end;
  } else {
    ranges.push_back(range);
  }
}

inline std::uint64_t total_bytes(std::span<const AddressRange> ranges) {
  std::uint64_t bytes = 0;
  for (const AddressRange& range : ranges) bytes += range.bytes();
  return bytes;
}

}  // namespace gcr

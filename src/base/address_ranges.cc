#include "src/base/address_ranges.h"

#include <algorithm>
#include <numeric>

namespace gcr {

void append(AddressRanges& ranges, const AddressRange& range) {
  if (range.start == range.end) return;
  if (!ranges.empty() && ranges.back().end == range.start) {
    ranges.back().end = range.end;
  } else {
    ranges.push_back(range);
  }
}

AddressRanges intersection(const AddressRanges& one, const AddressRanges& other) {
  AddressRanges both;
  for (auto a = one.begin(), b = other.begin(); a != one.end() && b != other.end();) {
    const AddressRange common{std::max(a->start, b->start), std::min(a->end, b->end)};
    if (common.start < common.end) both.push_back(common);
    if (a->end < b->end) {
      ++a;
    } else {
      ++b;
    }
  }
  return both;
}

AddressRanges difference(const AddressRanges& one, const AddressRanges& other) {
  AddressRanges rest;
  auto hole = other.begin();
  for (AddressRange range : one) {
    while (hole != other.end() && hole->end <= range.start) ++hole;
    for (auto at = hole; at != other.end() && at->start < range.end; ++at) {
      if (at->start > range.start) rest.push_back({range.start, at->start});
      range.start = std::max(range.start, std::min(at->end, range.end));
    }
    if (range.start < range.end) rest.push_back(range);
  }
  return rest;
}

AddressRanges united(const AddressRanges& one, const AddressRanges& other) {
  AddressRanges all;
  AddressRanges sorted;
  sorted.reserve(one.size() + other.size());
  std::ranges::merge(one, other, std::back_inserter(sorted), {}, &AddressRange::start,
                     &AddressRange::start);
  for (const AddressRange& range : sorted) {
    if (!all.empty() && range.start <= all.back().end) {
      all.back().end = std::max(all.back().end, range.end);
    } else {
      all.push_back(range);
    }
  }
  return all;
}

std::uint64_t bytes_of(const AddressRanges& ranges) {
  return std::accumulate(ranges.begin(), ranges.end(), std::uint64_t{0},
                         [](auto sum, const AddressRange& range) { return sum + range.bytes(); });
}

}  // namespace gcr

// Addresses in the memory of a process: ranges and sets.
#pragma once

#include <cstdint>
#include <vector>

namespace gcr {

struct AddressRange {
  std::uint64_t start = 0;
  std::uint64_t end = 0;  ///< exclusive

  std::uint64_t bytes() const { return end - start; }
  bool operator==(const AddressRange&) const = default;
};

/// A set of addresses: ranges in ascending order that do not overlap.
using AddressRanges = std::vector<AddressRange>;

/// Appends `range`, which must not start before the last range ends; adjacent ranges are merged.
/// Does nothing if `range` is empty.
void append(AddressRanges& ranges, const AddressRange& range);

/// Returns the addresses that are in both sets. A range of the result ends where one ends in either
/// set.
AddressRanges intersection(const AddressRanges& one, const AddressRanges& other);

/// Returns the addresses that are in `one` and not in `other`.
AddressRanges difference(const AddressRanges& one, const AddressRanges& other);

/// Returns the addresses that are in at least one of the sets.
AddressRanges united(const AddressRanges& one, const AddressRanges& other);

std::uint64_t bytes_of(const AddressRanges& ranges);

}  // namespace gcr

// Sets of addresses: lists of ranges in ascending order that do not overlap.
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/address_range.h"

namespace gcr {

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

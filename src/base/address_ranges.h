// Sets of addresses, as ranges in ascending order that do not overlap.
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/address_range.h"

namespace gcr {

using AddressRanges = std::vector<AddressRange>;

/// Adds a range that begins no earlier than the last one ends; where they meet they become one.
/// Nothing if it is empty.
void append(AddressRanges& ranges, const AddressRange& range);

/// What is in both; ranges end where they end in either of them.
AddressRanges intersection(const AddressRanges& one, const AddressRanges& other);

/// What is in `one` and not in `other`.
AddressRanges difference(const AddressRanges& one, const AddressRanges& other);

/// What is in either.
AddressRanges united(const AddressRanges& one, const AddressRanges& other);

std::uint64_t bytes_of(const AddressRanges& ranges);

}  // namespace gcr

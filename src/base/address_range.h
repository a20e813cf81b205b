// A range of addresses in the memory of a process.
#pragma once

#include <cstdint>

namespace gcr {

struct AddressRange {
  std::uint64_t start = 0;
  std::uint64_t end = 0;  ///< exclusive

  std::uint64_t bytes() const { return end - start; }
  bool operator==(const AddressRange&) const = default;
};

}  // namespace gcr

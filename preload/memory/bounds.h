// Checks that a copy or fill stays in the allocation in which it begins. The driver checks that for
// its own allocations, but of backed memory it knows only whole arenas and units. So the shims
// check it and return the driver's error.
//
// Each thread caches the ranges that it has found, by address, until an allocation is made or
// freed: a check then takes two loads. Nothing here locks or allocates.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "preload/memory/types.h"

namespace gcr::preload::bounds {

/// A copy that begins in [begin, end) may touch memory before `limit`; 0: none.
struct Range {
  std::uint64_t tag = 0;  ///< current_tag() when it was found; 0: never
  Address begin = 0;
  Address end = 0;
  Address limit = 0;
};

inline constexpr Address kUnlimited = ~Address{0};  ///< the limit if the driver checks itself

/// Counts changes that invalidate cached ranges.
inline constinit std::atomic<std::uint64_t> g_changes{1};
inline void note_change() { g_changes.fetch_add(1, std::memory_order_release); }

/// The tag of a range that is found now.
inline std::uint64_t current_tag() { return g_changes.load(std::memory_order_acquire); }

inline constexpr std::size_t kRemembered = 8;
inline constinit thread_local Range t_ranges[kRemembered]
    __attribute__((tls_model("initial-exec"))) = {};

/// Whether `bytes` from `address` on are in one allocation; true for memory that the library did
/// not allocate. `find` returns the range around an address. Call it inside the gate.
template <class Find>
inline bool stays_inside(Address address, std::size_t bytes, const Find& find) {
  Range& known = t_ranges[(address >> 21) % kRemembered];
  if (known.tag != current_tag() || address - known.begin >= known.end - known.begin) [[unlikely]] {
    known = find(address);
  }
  return known.limit == kUnlimited || bytes == 0 ||
         (address < known.limit && bytes <= known.limit - address);
}

}  // namespace gcr::preload::bounds

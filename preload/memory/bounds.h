// Whether a copy or a fill stays in the allocation that it begins in. The driver would know of
// allocations of its own; here it knows of arenas, and of whole units of memory, in which the
// application has allocated less. So the shims compare, and answer as the driver does.
//
// A thread remembers what it has found, by address, as long as no allocation has come or gone: then
// a comparison takes two loads. Nothing here locks or allocates.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "preload/memory/types.h"

namespace gcr::preload::bounds {

/// From addresses in [begin, end) one may touch what is before `limit`; 0: nothing.
struct Range {
  std::uint64_t tag = 0;  ///< what it was found at; 0: never
  Address begin = 0;
  Address end = 0;
  Address limit = 0;
};

inline constexpr Address kUnlimited = ~Address{0};  ///< a limit: the driver looks

/// Counts what makes ranges others than they were.
inline constinit std::atomic<std::uint64_t> g_changes{1};
inline void note_change() { g_changes.fetch_add(1, std::memory_order_release); }

/// For a range that is found now, of the runtime of that number.
inline std::uint64_t tag_of(unsigned runtime) {
  return g_changes.load(std::memory_order_acquire) * 2 + runtime;
}

inline constexpr std::size_t kRemembered = 8;
inline constinit thread_local Range t_ranges[kRemembered]
    __attribute__((tls_model("initial-exec"))) = {};

/// Whether `bytes` from `address` on are in one allocation, if it is one that the library has made.
/// `find` gives the range around an address. Inside the gate.
template <unsigned kRuntime, class Find>
inline bool stays_inside(Address address, std::size_t bytes, const Find& find) {
  Range& known = t_ranges[(address >> 21) % kRemembered];
  if (known.tag != tag_of(kRuntime) || address - known.begin >= known.end - known.begin)
      [[unlikely]] {
    known = find(address);
  }
  return known.limit == kUnlimited || bytes == 0 ||
         (address < known.limit && bytes <= known.limit - address);
}

}  // namespace gcr::preload::bounds

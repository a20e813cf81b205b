// The kernel's figures for memory and 2 MiB hugepages, read again at each call.
#pragma once

#include <cstdint>
#include <string>

#include "src/base/result.h"

namespace gcr::hostmem {

enum class HugepagePolicy {
  kInvalid = 0,
  kAuto,     ///< hugepages, or ordinary pages with a note
  kRequire,  ///< hugepages or nothing
  kNever,    ///< ordinary pages
};

/// Directory of the kernel's counters and limits of 2 MiB hugepages.
inline constexpr const char* kHugepageDirectory = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// Numbers of 2 MiB pages, as in the kernel's hugetlbpage documentation.
struct HugepageCounters {
  std::uint64_t free = 0;        ///< in the pool and not in use; some may be reserved
  std::uint64_t reserved = 0;    ///< free pages that are promised to mappings
  std::uint64_t surplus = 0;     ///< pages beyond the persistent pool, allocated on demand
  std::uint64_t overcommit = 0;  ///< the limit of `surplus`

  /// Free pages of the pool that are not reserved.
  std::uint64_t pool() const;

  /// Pages that a new mapping can get without a change to the limits.
  std::uint64_t available() const;

  /// Returns by how much the limit must rise for a new mapping of `pages`. This is more than
  /// available() lacks if there are more surplus pages than the limit allows: when a process ends,
  /// its pages are freed after its claim (hugepage_claim.h).
  std::uint64_t missing(std::uint64_t pages) const;
};

/// Reads the counters. Fails with kUnsupported if the kernel has no such pages.
Result<HugepageCounters> hugepage_counters(const std::string& directory = kHugepageDirectory);

/// Returns how many bytes in 2 MiB hugepages a new mapping can get without a change to the kernel's
/// limits.
Result<std::uint64_t> free_hugepage_bytes();

/// Returns how many bytes new processes can use without swapping (MemAvailable).
Result<std::uint64_t> available_memory_bytes();

/// Reads a file that holds one number.
Result<std::uint64_t> read_number(const std::string& path);

/// Writes one number to an existing file.
Status write_number(const std::string& path, std::uint64_t number);

}  // namespace gcr::hostmem

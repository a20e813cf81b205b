// What the kernel says about memory and 2 MiB hugepages, read again at each call.
#pragma once

#include <cstdint>
#include <string>

#include "src/base/result.h"

namespace gcr::hostmem {

/// Where the kernel's counters and limits of 2 MiB hugepages are.
inline constexpr const char* kHugepageDirectory = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// Numbers of 2 MiB pages, as in the kernel's hugetlbpage documentation.
struct HugepageCounters {
  std::uint64_t free = 0;        ///< in the pool and not in use; some may be reserved
  std::uint64_t reserved = 0;    ///< of the free ones, promised to mappings
  std::uint64_t surplus = 0;     ///< beyond the persistent pool, made on demand
  std::uint64_t overcommit = 0;  ///< the limit of `surplus`

  /// Those in the pool that nobody was promised.
  std::uint64_t pool() const;

  /// What a new mapping can get without any change to the limits.
  std::uint64_t available() const;

  /// By how much the limit has to rise for a new mapping of `pages`. More than available() lacks if
  /// there are more surplus pages than the limit allows: those of a process that ends go after its
  /// claim (hugepage_claim.h).
  std::uint64_t missing(std::uint64_t pages) const;
};

/// Reads the counters. Fails with kUnsupported if the kernel has no such pages.
Result<HugepageCounters> hugepage_counters(const std::string& directory = kHugepageDirectory);

/// Bytes in 2 MiB hugepages that a new mapping can get without a change to the kernel's limits.
Result<std::uint64_t> free_hugepage_bytes();

/// Bytes that new processes can use without swapping (MemAvailable).
Result<std::uint64_t> available_memory_bytes();

/// Reads a file that holds one number.
Result<std::uint64_t> read_number(const std::string& path);

/// Writes one number to a file that exists.
Status write_number(const std::string& path, std::uint64_t number);

}  // namespace gcr::hostmem

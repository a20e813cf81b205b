// Finds the pages of zeros in a stopped process.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "migrate-agent/process/pages/mappings.h"
#include "src/base/read_memory.h"
#include "src/base/result.h"

namespace gcr::process {

/// Threads that read memory; more do not help: 8 read 25 GB/s on the machine of docs/design.md's
/// figures.
inline constexpr std::size_t kMostReaders = 8;

struct ZeroScan {
  std::uint64_t scanned_bytes = 0;
  std::vector<AddressRange> zeros;  ///< whole pages, in the order of addresses, none adjacent
};

/// Reads all of `where`, which is ascending and in whole pages, with several threads.
Result<ZeroScan> find_zero_pages(const std::vector<AddressRange>& where, const ReadMemory& read);

/// The same for every page that is present in `where`, of a process. Swapped-out pages are left
/// there. kIo if its memory cannot be read.
Result<ZeroScan> find_zero_pages(pid_t pid, const std::vector<AddressRange>& where);

/// About how many bytes of `mapping` are in memory and zero, by a sample of its pages. Needs a
/// kernel that answers present_pages(). kIo if the process's memory cannot be read.
Result<std::uint64_t> estimate_zero_bytes(pid_t pid, const AddressRange& mapping);

}  // namespace gcr::process

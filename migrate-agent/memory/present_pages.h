// Which pages a process has in memory.
#pragma once

#include <sys/types.h>

#include <vector>

#include "src/base/address_range.h"
#include "src/base/result.h"

namespace gcr::process {

/// Whether the kernel answers present_pages(): 6.7 and newer.
bool can_scan_pages();

/// The anonymous pages in `where`, ascending and disjoint, that are in memory now; the same order,
/// none adjacent. The process may run. Those that only show the kernel's page of zeros, or are
/// swapped out, are not among them. kNotFound if the process is gone.
Result<std::vector<AddressRange>> present_pages(pid_t pid, const std::vector<AddressRange>& where);

}  // namespace gcr::process

// Which pages a process has in memory.
#pragma once

#include <sys/types.h>

#include "src/base/address_ranges.h"
#include "src/base/result.h"

namespace gcr::process {

/// The anonymous pages in `where` that are in memory now; none of the ranges adjacent. The process
/// may run. Pages that are swapped out are not among them; those that only show the kernel's page
/// of zeros are among them only on kernels without PAGEMAP_SCAN, which do not tell them apart.
/// kNotFound if the process is gone.
Result<AddressRanges> present_pages(pid_t pid, const AddressRanges& where);

}  // namespace gcr::process

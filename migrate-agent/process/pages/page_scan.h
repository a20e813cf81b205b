// Asks the kernel for the pages of a process that are of a kind (PAGEMAP_SCAN, Linux 6.7).
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "src/base/address_ranges.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::process {

/// Numbers of src/base/pagemap_scan.h.
struct PageKind {
  std::uint64_t flags = 0;
  std::uint64_t all_of = 0;
  std::uint64_t none_of = 0;
};

class PageScan {
 public:
  /// kNotFound if the process is gone. After an exec the scan is still of its memory before that.
  static Result<PageScan> open(pid_t pid);

  /// Appends the pages of this kind in `where`, which is behind all of `found`. kPermissionDenied
  /// if the flags ask for a userfaultfd and a mapping in `where` has none; what is protected by
  /// then stays so.
  Status find(const PageKind& kind, const AddressRange& where, AddressRanges& found) const;

 private:
  explicit PageScan(UniqueFd pagemap) : pagemap_(std::move(pagemap)) {}

  UniqueFd pagemap_;
};

}  // namespace gcr::process

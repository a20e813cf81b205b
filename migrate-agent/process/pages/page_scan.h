// Asks the kernel which pages of a process are of a kind. Linux 6.7 and newer answer for whole
// ranges (PAGEMAP_SCAN); all kernels have an entry for each page in /proc/PID/pagemap, which says
// less.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "src/base/address_ranges.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::process {

inline constexpr std::uint64_t kPageBytes = 4096;

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
  /// then stays so. kUnsupported, with nothing appended, if the kernel has no PAGEMAP_SCAN.
  Status find(const PageKind& kind, const AddressRange& where, AddressRanges& found) const;

  /// On any kernel: appends the anonymous pages in `where`, whole pages, that are in memory. The
  /// kernel's page of zeros counts as one. kNotFound if the process is gone.
  Status find_present(const AddressRange& where, AddressRanges& found) const;

 private:
  explicit PageScan(UniqueFd pagemap) : pagemap_(std::move(pagemap)) {}

  UniqueFd pagemap_;
};

/// The anonymous pages in `where` that are in memory now; none of the ranges adjacent. The process
/// may run. Pages that are swapped out are not among them; those that only show the kernel's page
/// of zeros are among them only on kernels without PAGEMAP_SCAN, which do not tell them apart.
/// kNotFound if the process is gone.
Result<AddressRanges> present_pages(pid_t pid, const AddressRanges& where);

}  // namespace gcr::process

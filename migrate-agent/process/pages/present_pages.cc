#include "migrate-agent/process/pages/present_pages.h"

#include "migrate-agent/process/pages/page_scan.h"
#include "src/base/pagemap_scan.h"

namespace gcr::process {

Result<AddressRanges> present_pages(pid_t pid, const AddressRanges& where) {
  constexpr PageKind kInMemory{.all_of = pagemap::kIsPresent,
                               .none_of = pagemap::kIsTheZeroPage | pagemap::kIsFile};
  GCR_ASSIGN(const PageScan scan, PageScan::open(pid));
  AddressRanges found;
  for (const AddressRange& range : where) {
    Status scanned = scan.find(kInMemory, range, found);
    if (!scanned && scanned.error().code() == Code::kUnsupported) {
      scanned = scan.find_present(range, found);
    }
    GCR_TRY(scanned);
  }
  return found;
}

}  // namespace gcr::process

#include "migrate-agent/process/pages/present_pages.h"

#include <unistd.h>

#include "migrate-agent/process/pages/page_scan.h"
#include "src/base/pagemap_scan.h"

namespace gcr::process {

bool can_scan_pages() {
  static const char here = 0;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t start = reinterpret_cast<std::uintptr_t>(&here) / page * page;
  return present_pages(::getpid(), {{start, start + page}}).has_value();
}

Result<AddressRanges> present_pages(pid_t pid, const AddressRanges& where) {
  constexpr PageKind kInMemory{.all_of = pagemap::kIsPresent,
                               .none_of = pagemap::kIsTheZeroPage | pagemap::kIsFile};
  GCR_ASSIGN(const PageScan scan, PageScan::open(pid));
  AddressRanges found;
  for (const AddressRange& range : where) GCR_TRY(scan.find(kInMemory, range, found));
  return found;
}

}  // namespace gcr::process

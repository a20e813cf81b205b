#include "migrate-agent/memory/zero_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "migrate-agent/criu/held_threads.h"
#include "migrate-agent/memory/zero_scan.h"

namespace gcr::process {
namespace {

using Clock = std::chrono::steady_clock;
using agent::GpuAccess;

/// A mapping is the driver's, or as good as that, if so much of it went.
bool is_nearly_empty(const AddressRange& mapping, std::uint64_t dropped_bytes) {
  constexpr std::uint64_t kHugePageBytes = 2 << 20;
  return dropped_bytes >= kHugePageBytes && dropped_bytes >= mapping.bytes() / 10 * 9;
}

/// What may be scanned: nothing at all if the kernel itself writes for the process.
AddressRanges droppable(const MemoryMappings& mappings, std::uint64_t used_stack) {
  AddressRanges ranges;
  for (const MemoryMapping& mapping : mappings) {
    if (mapping.asynchronous_io) return {};
    const bool stack = mapping.range.start <= used_stack && used_stack < mapping.range.end;
    if (mapping.plain && !mapping.tracked && !stack && mapping.anonymous_bytes > 0) {
      ranges.push_back(mapping.range);
    }
  }
  return ranges;
}

std::vector<GpuAccess::Pages> pages_of(const std::vector<AddressRange>& ranges) {
  std::vector<GpuAccess::Pages> pages;
  pages.reserve(ranges.size());
  for (const AddressRange& range : ranges) pages.push_back({range.start, range.bytes()});
  return pages;
}

/// Those of `mappings` that are nearly empty without `zeros`; both in the order of addresses.
std::vector<AddressRange> nearly_empty(const std::vector<AddressRange>& mappings,
                                       const std::vector<AddressRange>& zeros) {
  std::vector<AddressRange> found;
  auto zero = zeros.begin();
  for (const AddressRange& mapping : mappings) {
    std::uint64_t dropped = 0;
    while (zero != zeros.end() && zero->start < mapping.end) {
      // Where mappings touch, so may their zeros.
      dropped += std::min(zero->end, mapping.end) - std::max(zero->start, mapping.start);
      if (zero->end > mapping.end) break;
      ++zero;
    }
    if (is_nearly_empty(mapping, dropped)) found.push_back(mapping);
  }
  return found;
}

}  // namespace

Result<DroppedPages> drop_zero_pages(GpuAccess& access, const procfs::Process& process,
                                     const KnownMemory* known) {
  const auto start = Clock::now();
  GCR_ASSIGN(const agent::AccessState state, access.look());
  DroppedPages dropped;
  criu::HeldThreads threads(process);
  const auto hold_start = Clock::now();
  GCR_TRY(threads.hold_all_but(state.thread));
  GCR_ASSIGN(const auto mappings, known == nullptr ? read_mappings(process.pid())
                                                   : read_mappings(process.pid(), *known));
  const auto where = droppable(mappings, state.stack);
  GCR_ASSIGN(const ZeroScan scan, find_zero_pages(process.pid(), where));
  dropped.scanned_bytes = scan.scanned_bytes;
  GCR_ASSIGN(dropped.dropped_bytes, access.drop_pages(pages_of(scan.zeros)));
  threads.let_go();
  dropped.held = Clock::now() - hold_start;
  // Only a hint: a kernel without huge pages refuses it.
  (void)access.use_huge_pages(pages_of(nearly_empty(where, scan.zeros)));
  dropped.duration = Clock::now() - start;
  return dropped;
}

}  // namespace gcr::process

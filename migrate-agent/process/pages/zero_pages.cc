#include "migrate-agent/process/pages/zero_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "migrate-agent/linux/ptrace/held_threads.h"
#include "migrate-agent/process/pages/zero_scan.h"
#include "src/base/side_by_side.h"

namespace gcr::process {
namespace {

using Clock = std::chrono::steady_clock;
using gpu::GpuAccess;

constexpr std::uint64_t kHugePageBytes = 2 << 20;

/// A mapping is the driver's, or as good as that, if it has so many zeros.
bool is_nearly_empty(const AddressRange& mapping, std::uint64_t zero_bytes) {
  return zero_bytes >= kHugePageBytes && zero_bytes >= mapping.bytes() / 10 * 9;
}

/// What may be scanned, without those of `left_out`: nothing at all if the kernel itself writes for
/// the process.
AddressRanges droppable(const MemoryMappings& mappings, std::uint64_t used_stack,
                        const AddressRanges& left_out) {
  AddressRanges ranges;
  for (const MemoryMapping& mapping : mappings) {
    if (mapping.asynchronous_io) return {};
    const bool stack = mapping.range.start <= used_stack && used_stack < mapping.range.end;
    if (!mapping.plain || mapping.tracked || stack || mapping.anonymous_bytes == 0) continue;
    const auto same =
        std::ranges::lower_bound(left_out, mapping.range.start, {}, &AddressRange::start);
    if (same == left_out.end() || *same != mapping.range) ranges.push_back(mapping.range);
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

/// Those of `mappings` that are nearly empty by a sample of their pages.
std::vector<AddressRange> look_nearly_empty(pid_t pid, std::vector<AddressRange> mappings) {
  std::erase_if(mappings, [](const AddressRange& one) { return one.bytes() < kHugePageBytes; });
  std::vector<std::atomic<bool>> is_found(mappings.size());
  // Of a mapping that cannot be read, nothing is known.
  (void)share_out(mappings.size(), kMostReaders, [&](std::size_t i) -> Status {
    const auto zeros = estimate_zero_bytes(pid, mappings[i]);
    is_found[i] = zeros && is_nearly_empty(mappings[i], *zeros);
    return {};
  });
  std::vector<AddressRange> found;
  for (std::size_t i = 0; i < mappings.size(); ++i) {
    if (is_found[i]) found.push_back(mappings[i]);
  }
  return found;
}

/// Only a hint: a kernel without huge pages refuses it.
void mark(GpuAccess& access, const std::vector<AddressRange>& mappings) {
  if (!mappings.empty()) (void)access.use_huge_pages(pages_of(mappings));
}

}  // namespace

Result<DroppedPages> drop_zero_pages(GpuAccess& access, const procfs::Process& process,
                                     const AddressRanges& left_out, const KnownMemory* known) {
  const auto start = Clock::now();
  const auto read = [&] {
    return known == nullptr ? read_mappings(process.pid()) : read_mappings(process.pid(), *known);
  };
  GCR_ASSIGN(const gpu::AccessState state, access.read_state());
  DroppedPages dropped;
  mark(access, look_nearly_empty(process.pid(), left_out));
  GCR_ASSIGN(auto mappings, read());
  if (!droppable(mappings, state.stack, left_out).empty()) {
    tracing::HeldThreads threads(process);
    const auto hold_start = Clock::now();
    GCR_TRY(threads.hold_all_but(state.thread));
    GCR_ASSIGN(mappings, read());
    const auto where = droppable(mappings, state.stack, left_out);
    GCR_ASSIGN(const ZeroScan scan, find_zero_pages(process.pid(), where));
    dropped.scanned_bytes = scan.scanned_bytes;
    GCR_ASSIGN(dropped.dropped_bytes, access.drop_pages(pages_of(scan.zeros)));
    threads.release();
    dropped.held = Clock::now() - hold_start;
    mark(access, nearly_empty(where, scan.zeros));
  }
  dropped.duration = Clock::now() - start;
  return dropped;
}

}  // namespace gcr::process

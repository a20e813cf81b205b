#include "migrate-agent/process/pages/zero_pages.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <span>
#include <vector>

#include "migrate-agent/linux/procfs/memory_of.h"
#include "migrate-agent/linux/ptrace/tracing.h"
#include "migrate-agent/process/pages/page_scan.h"
#include "migrate-agent/process/pages/process_memory.h"
#include "src/base/side_by_side.h"
#include "src/base/zeros.h"

namespace gcr::process {
namespace {

using Clock = std::chrono::steady_clock;
using gpu::GpuAccess;

constexpr std::uint64_t kHugePageBytes = 2 << 20;
/// Small enough for a processor's second-level cache: what is copied is looked at at once.
constexpr std::uint64_t kPieceBytes = 256 * 1024;
constexpr std::uint64_t kSamples = 64;  ///< of a mapping

struct ZeroScan {
  std::uint64_t scanned_bytes = 0;
  AddressRanges zeros;  ///< whole pages
};

AddressRanges pieces_of(const AddressRanges& ranges) {
  AddressRanges pieces;
  for (AddressRange range : ranges) {
    for (; range.bytes() > kPieceBytes; range.start += kPieceBytes) {
      pieces.push_back({range.start, range.start + kPieceBytes});
    }
    if (range.bytes() > 0) pieces.push_back(range);
  }
  return pieces;
}

/// The pages of zeros in a piece.
Status scan_piece(pid_t pid, const AddressRange& piece, AddressRanges& zeros) {
  std::array<std::byte, kPieceBytes> buffer;
  GCR_TRY(procfs::read_memory(pid, piece.start, std::span(buffer).first(piece.bytes())));
  for (std::uint64_t at = piece.start; at < piece.end; at += kPageBytes) {
    if (is_zero(std::span(buffer).subspan(at - piece.start, kPageBytes))) {
      append(zeros, {at, at + kPageBytes});
    }
  }
  return {};
}

/// Reads every page that is present in `where`, with several threads. Swapped-out pages are left
/// there. kIo if the memory cannot be read.
Result<ZeroScan> find_zero_pages(pid_t pid, const AddressRanges& where) {
  GCR_ASSIGN(const auto present, present_pages(pid, where));
  const auto pieces = pieces_of(present);
  std::vector<AddressRanges> zeros(pieces.size());
  const std::size_t useful_threads = pieces.size() / 8 + 1;
  GCR_TRY(share_out(pieces.size(), std::min(useful_threads, kMostReaders),
                    [&](std::size_t i) { return scan_piece(pid, pieces[i], zeros[i]); }));
  ZeroScan scan;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    scan.scanned_bytes += pieces[i].bytes();
    for (const AddressRange& range : zeros[i]) append(scan.zeros, range);
  }
  return scan;
}

/// About how many bytes of `mapping` are in memory and zero, by a sample of its pages. kIo if the
/// memory cannot be read.
Result<std::uint64_t> estimate_zero_bytes(pid_t pid, const AddressRange& mapping) {
  GCR_ASSIGN(const auto pieces, present_pages(pid, {mapping}));
  std::uint64_t present = 0;
  for (const AddressRange& piece : pieces) present += piece.bytes() / kPageBytes;
  const std::uint64_t samples = std::min<std::uint64_t>(present, kSamples);
  if (samples == 0) return 0;
  std::vector<iovec> there;
  auto piece = pieces.begin();
  std::uint64_t before = 0;  // pages in the pieces before this one
  for (std::uint64_t i = 0; i < samples; ++i) {
    const std::uint64_t wanted = i * present / samples;
    for (; wanted - before >= piece->bytes() / kPageBytes; ++piece)
      before += piece->bytes() / kPageBytes;
    there.push_back(
        {reinterpret_cast<void*>(piece->start + (wanted - before) * kPageBytes), kPageBytes});
  }
  std::vector<std::byte> sample(samples * kPageBytes);
  GCR_TRY(procfs::read_memory(pid, there, sample));
  std::uint64_t zeros = 0;
  for (std::uint64_t i = 0; i < samples; ++i) {
    zeros += is_zero(std::span(sample).subspan(i * kPageBytes, kPageBytes)) ? 1 : 0;
  }
  return present * kPageBytes / samples * zeros;
}

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

std::vector<GpuAccess::Pages> pages_of(const AddressRanges& ranges) {
  std::vector<GpuAccess::Pages> pages;
  pages.reserve(ranges.size());
  for (const AddressRange& range : ranges) pages.push_back({range.start, range.bytes()});
  return pages;
}

/// Those of `mappings` that are nearly empty without `zeros`; both in the order of addresses.
AddressRanges nearly_empty(const AddressRanges& mappings, const AddressRanges& zeros) {
  AddressRanges found;
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
AddressRanges look_nearly_empty(pid_t pid, AddressRanges mappings) {
  std::erase_if(mappings, [](const AddressRange& one) { return one.bytes() < kHugePageBytes; });
  std::vector<std::atomic<bool>> is_found(mappings.size());
  // Of a mapping that cannot be read, nothing is known.
  (void)share_out(mappings.size(), kMostReaders, [&](std::size_t i) -> Status {
    const auto zeros = estimate_zero_bytes(pid, mappings[i]);
    is_found[i] = zeros && is_nearly_empty(mappings[i], *zeros);
    return {};
  });
  AddressRanges found;
  for (std::size_t i = 0; i < mappings.size(); ++i) {
    if (is_found[i]) found.push_back(mappings[i]);
  }
  return found;
}

/// Only a hint: a kernel without huge pages refuses it.
void mark(GpuAccess& access, const AddressRanges& mappings) {
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

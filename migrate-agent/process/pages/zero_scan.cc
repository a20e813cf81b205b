#include "migrate-agent/process/pages/zero_scan.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <span>

#include "migrate-agent/linux/procfs/memory_of.h"
#include "migrate-agent/process/pages/present_pages.h"
#include "src/base/side_by_side.h"
#include "src/base/zeros.h"

namespace gcr::process {
namespace {

/// Small enough for a processor's second-level cache: what is copied is looked at at once.
constexpr std::uint64_t kPieceBytes = 256 * 1024;
constexpr std::uint64_t kSamples = 64;  ///< of a mapping

std::uint64_t page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

std::vector<AddressRange> pieces_of(const std::vector<AddressRange>& ranges) {
  std::vector<AddressRange> pieces;
  for (AddressRange range : ranges) {
    for (; range.bytes() > kPieceBytes; range.start += kPieceBytes) {
      pieces.push_back({range.start, range.start + kPieceBytes});
    }
    if (range.bytes() > 0) pieces.push_back(range);
  }
  return pieces;
}

/// The pages of zeros in a piece.
Status look_at(const AddressRange& piece, const ReadMemory& read,
               std::vector<AddressRange>& zeros) {
  std::array<std::byte, kPieceBytes> buffer;
  GCR_TRY(read(piece.start, std::span(buffer).first(piece.bytes())));
  const std::uint64_t page = page_bytes();
  for (std::uint64_t at = piece.start; at < piece.end; at += page) {
    if (is_zero(std::span(buffer).subspan(at - piece.start, page))) {
      append(zeros, {at, at + page});
    }
  }
  return {};
}

}  // namespace

Result<ZeroScan> find_zero_pages(const std::vector<AddressRange>& where, const ReadMemory& read) {
  const auto pieces = pieces_of(where);
  std::vector<std::vector<AddressRange>> zeros(pieces.size());
  const std::size_t useful_threads = pieces.size() / 8 + 1;
  GCR_TRY(share_out(pieces.size(), std::min(useful_threads, kMostReaders),
                    [&](std::size_t i) { return look_at(pieces[i], read, zeros[i]); }));
  ZeroScan scan;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    scan.scanned_bytes += pieces[i].bytes();
    for (const AddressRange& range : zeros[i]) append(scan.zeros, range);
  }
  return scan;
}

Result<ZeroScan> find_zero_pages(pid_t pid, const std::vector<AddressRange>& where) {
  GCR_ASSIGN(const auto present, present_pages(pid, where));
  return find_zero_pages(present, [pid](std::uint64_t address, std::span<std::byte> bytes) {
    return procfs::read_memory(pid, address, bytes);
  });
}

Result<std::uint64_t> estimate_zero_bytes(pid_t pid, const AddressRange& mapping) {
  GCR_ASSIGN(const auto pieces, present_pages(pid, {mapping}));
  const std::uint64_t page = page_bytes();
  std::uint64_t present = 0;
  for (const AddressRange& piece : pieces) present += piece.bytes() / page;
  const std::uint64_t samples = std::min<std::uint64_t>(present, kSamples);
  if (samples == 0) return 0;
  std::vector<iovec> there;
  auto piece = pieces.begin();
  std::uint64_t before = 0;  // pages in the pieces before this one
  for (std::uint64_t i = 0; i < samples; ++i) {
    const std::uint64_t wanted = i * present / samples;
    for (; wanted - before >= piece->bytes() / page; ++piece) before += piece->bytes() / page;
    there.push_back({reinterpret_cast<void*>(piece->start + (wanted - before) * page), page});
  }
  std::vector<std::byte> sample(samples * page);
  GCR_TRY(procfs::read_memory(pid, there, sample));
  std::uint64_t zeros = 0;
  for (std::uint64_t i = 0; i < samples; ++i) {
    zeros += is_zero(std::span(sample).subspan(i * page, page)) ? 1 : 0;
  }
  return present * page / samples * zeros;
}

}  // namespace gcr::process

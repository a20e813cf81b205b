#include "migrate-agent/memory/zero_scan.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "migrate-agent/memory/present_pages.h"
#include "src/base/side_by_side.h"
#include "src/base/unique_fd.h"

namespace gcr::process {
namespace {

/// Small enough for a processor's second-level cache: what is copied is looked at at once.
constexpr std::uint64_t kPieceBytes = 256 * 1024;
constexpr std::uint64_t kEntriesAtOnce = 64 * 1024;
/// More do not help: 8 threads read 25 GB/s on the machine of docs/design.md's figures.
constexpr std::size_t kMostThreads = 8;

// Bits of an entry of /proc/PID/pagemap.
constexpr std::uint64_t kPresent = 1ull << 63;
constexpr std::uint64_t kFileOrShared = 1ull << 61;

std::uint64_t page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

/// Appends a range, to the last one where they meet and stay within `limit`.
void append_piece(std::vector<AddressRange>& ranges, AddressRange range, std::uint64_t limit) {
  if (!ranges.empty() && ranges.back().end == range.start &&
      ranges.back().bytes() + range.bytes() <= limit) {
    ranges.back().end = range.end;
  } else {
    ranges.push_back(range);
  }
}

/// What is present of `where`, in pieces of at most kPieceBytes.
Result<AddressRanges> present_pieces(pid_t pid, const AddressRanges& where) {
  AddressRanges pieces;
  if (can_scan_pages()) {
    GCR_ASSIGN(const AddressRanges present, present_pages(pid, where));
    for (AddressRange rest : present) {
      for (; rest.start < rest.end; rest.start = pieces.back().end) {
        pieces.push_back({rest.start, std::min(rest.end, rest.start + kPieceBytes)});
      }
    }
    return pieces;
  }
  const std::string path = fmt::format("/proc/{}/pagemap", pid);
  const UniqueFd pagemap(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!pagemap) return Error::from_errno(errno, "cannot open " + path);
  const std::uint64_t page = page_bytes();
  std::vector<std::uint64_t> entries(kEntriesAtOnce);
  for (const AddressRange& range : where) {
    for (std::uint64_t at = range.start; at < range.end;) {
      const std::uint64_t wanted = std::min((range.end - at) / page, kEntriesAtOnce);
      const ssize_t got = ::pread(pagemap.get(), entries.data(), wanted * sizeof(entries[0]),
                                  static_cast<off_t>(at / page * sizeof(entries[0])));
      if (got < static_cast<ssize_t>(sizeof(entries[0]))) {
        return Error::from_errno(got < 0 ? errno : EIO, "cannot read " + path);
      }
      const std::uint64_t count = static_cast<std::uint64_t>(got) / sizeof(entries[0]);
      for (std::uint64_t i = 0; i < count; ++i, at += page) {
        if ((entries[i] & (kPresent | kFileOrShared)) == kPresent) {
          append_piece(pieces, {at, at + page}, kPieceBytes);
        }
      }
    }
  }
  return pieces;
}

/// The pages of zeros in a piece.
Status look_at(pid_t pid, const AddressRange& piece, std::vector<AddressRange>& zeros) {
  std::array<std::byte, kPieceBytes> buffer;
  const iovec here{buffer.data(), piece.bytes()};
  const iovec there{reinterpret_cast<void*>(piece.start), piece.bytes()};
  const ssize_t got = ::process_vm_readv(pid, &here, 1, &there, 1, 0);
  if (got != static_cast<ssize_t>(piece.bytes())) {
    return Error::from_errno(got < 0 ? errno : EFAULT,
                             fmt::format("cannot read the memory of process {}", pid));
  }
  const std::uint64_t page = page_bytes();
  for (std::uint64_t at = piece.start; at < piece.end; at += page) {
    if (is_zero(buffer.data() + (at - piece.start), page)) append(zeros, {at, at + page});
  }
  return {};
}

}  // namespace

bool is_zero(const void* at, std::size_t bytes) {
  const auto* first = static_cast<const char*>(at);
  return *first == 0 && std::memcmp(first, first + 1, bytes - 1) == 0;
}

Result<ZeroScan> find_zero_pages(pid_t pid, const std::vector<AddressRange>& where) {
  GCR_ASSIGN(const auto pieces, present_pieces(pid, where));
  std::vector<std::vector<AddressRange>> zeros(pieces.size());
  const std::size_t useful_threads = pieces.size() / 8 + 1;
  GCR_TRY(share_out(pieces.size(), std::min(useful_threads, kMostThreads),
                    [&](std::size_t i) { return look_at(pid, pieces[i], zeros[i]); }));
  ZeroScan scan;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    scan.scanned_bytes += pieces[i].bytes();
    for (const AddressRange& range : zeros[i]) append(scan.zeros, range);
  }
  return scan;
}

}  // namespace gcr::process

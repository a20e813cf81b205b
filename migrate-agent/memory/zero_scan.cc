#include "migrate-agent/memory/zero_scan.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include "src/base/unique_fd.h"

namespace gcr::process {
namespace {

/// Small enough for a processor's second-level cache: what is copied is looked at at once.
constexpr std::uint64_t kPieceBytes = 256 * 1024;
constexpr std::uint64_t kEntriesAtOnce = 64 * 1024;
/// More do not help: 8 threads read 25 GB/s on the machine of docs/design.md's figures.
constexpr unsigned kMostThreads = 8;

// Bits of an entry of /proc/PID/pagemap.
constexpr std::uint64_t kPresent = 1ull << 63;
constexpr std::uint64_t kFileOrShared = 1ull << 61;

std::uint64_t page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

/// Appends a range, to the last one where they meet and stay within `limit`.
void append(std::vector<AddressRange>& ranges, AddressRange range, std::uint64_t limit) {
  if (!ranges.empty() && ranges.back().end == range.start &&
      ranges.back().bytes() + range.bytes() <= limit) {
    ranges.back().end = range.end;
  } else {
    ranges.push_back(range);
  }
}

/// What is present of `where`, in pieces of at most kPieceBytes.
Result<std::vector<AddressRange>> present_pieces(pid_t pid,
                                                 const std::vector<AddressRange>& where) {
  const std::string path = fmt::format("/proc/{}/pagemap", pid);
  const UniqueFd pagemap(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!pagemap) return Error::from_errno(errno, "cannot open " + path);
  const std::uint64_t page = page_bytes();
  std::vector<AddressRange> pieces;
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
          append(pieces, {at, at + page}, kPieceBytes);
        }
      }
    }
  }
  return pieces;
}

/// The threads' common work.
class Scanner {
 public:
  Scanner(pid_t pid, std::vector<AddressRange> pieces) : pid_(pid), pieces_(std::move(pieces)) {}

  void work() {
    const auto buffer = std::make_unique_for_overwrite<std::byte[]>(kPieceBytes);
    std::vector<AddressRange> found;
    for (std::size_t i = next_++; i < pieces_.size() && error_ == 0; i = next_++) {
      if (!look_at(pieces_[i], buffer.get(), found)) return;
    }
    const std::lock_guard lock(mutex_);
    zeros_.insert(zeros_.end(), found.begin(), found.end());
  }

  Result<ZeroScan> result() {
    if (error_ != 0) {
      return Error::from_errno(error_, fmt::format("cannot read the memory of process {}", pid_));
    }
    ZeroScan scan;
    for (const AddressRange& piece : pieces_) scan.scanned_bytes += piece.bytes();
    std::sort(zeros_.begin(), zeros_.end(),
              [](const auto& a, const auto& b) { return a.start < b.start; });
    for (const AddressRange& range : zeros_) append(scan.zeros, range, ~0ull);
    return scan;
  }

 private:
  bool look_at(const AddressRange& piece, std::byte* buffer, std::vector<AddressRange>& found) {
    iovec here{buffer, piece.bytes()};
    iovec there{reinterpret_cast<void*>(piece.start), piece.bytes()};
    const ssize_t got = ::process_vm_readv(pid_, &here, 1, &there, 1, 0);
    if (got != static_cast<ssize_t>(piece.bytes())) {
      error_ = got < 0 ? errno : EFAULT;
      return false;
    }
    const std::uint64_t page = page_bytes();
    for (std::uint64_t at = piece.start; at < piece.end; at += page) {
      if (is_zero(buffer + (at - piece.start), page)) append(found, {at, at + page}, ~0ull);
    }
    return true;
  }

  const pid_t pid_;
  const std::vector<AddressRange> pieces_;
  std::atomic<std::size_t> next_{0};
  std::atomic<int> error_{0};
  std::mutex mutex_;
  std::vector<AddressRange> zeros_;
};

}  // namespace

bool is_zero(const void* at, std::size_t bytes) {
  const auto* first = static_cast<const char*>(at);
  return *first == 0 && std::memcmp(first, first + 1, bytes - 1) == 0;
}

Result<ZeroScan> find_zero_pages(pid_t pid, const std::vector<AddressRange>& where) {
  GCR_ASSIGN(auto pieces, present_pieces(pid, where));
  const std::size_t useful = pieces.size() / 8 + 1;
  Scanner scanner(pid, std::move(pieces));
  {
    std::vector<std::jthread> threads;
    const std::size_t count = std::min<std::size_t>(
        useful, std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads));
    for (std::size_t i = 1; i < count; ++i) threads.emplace_back([&] { scanner.work(); });
    scanner.work();
  }
  return scanner.result();
}

}  // namespace gcr::process

#include "migrate-agent/criu/memory/criu_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/raw_bytes.h"
#include "src/base/units.h"

namespace gcr::criu {
namespace {

using launch::Hold;
using launch::HoldMessage;
using launch::kHugePageBytes;

constexpr std::uint64_t kMostBlocks = 64;
constexpr std::uint64_t kWorthDropping = 256 * kKiB;

}  // namespace

/// By descriptor: even if CRIU ends and its PID is used again, no other process is written to.
Result<CriuMemory> CriuMemory::open(HoldLine& line, pid_t init, std::uint64_t most_bytes) {
  GCR_ASSIGN(const pid_t inner, line.wait_for_criu());
  GCR_ASSIGN(const pid_t pid, procfs::find_in_namespace(init, inner));
  UniqueFd memory(::open(fmt::format("/proc/{}/mem", pid).c_str(), O_RDWR | O_CLOEXEC));
  if (!memory) return Error::from_errno(errno, "cannot open the memory of CRIU");
  return CriuMemory(line, pid, std::move(memory), most_bytes);
}

Result<HoldMessage> CriuMemory::ask(const HoldMessage& request) {
  const std::lock_guard lock(*mutex_);
  return line_->ask(request);
}

Result<HoldMessage> CriuMemory::ask(Hold what, std::uint64_t address, std::uint64_t bytes) {
  return ask({.what = what, .address = address, .bytes = bytes});
}

Status CriuMemory::write(std::uint64_t address, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t put =
        ::pwrite(memory_.get(), bytes.data(), bytes.size(), static_cast<off_t>(address));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      return Error::from_errno(put < 0 ? errno : ENOMEM, "cannot put memory into the waiting CRIU");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    address += static_cast<std::uint64_t>(put);
  }
  return {};
}

Status CriuMemory::read(std::uint64_t address, std::span<std::byte> bytes) const {
  if (::pread(memory_.get(), bytes.data(), bytes.size(), static_cast<off_t>(address)) ==
      static_cast<ssize_t>(bytes.size())) {
    return {};
  }
  return Error::from_errno(errno, "cannot read the memory of CRIU");
}

bool CriuMemory::take_room(std::uint64_t bytes) {
  const std::lock_guard lock(*mutex_);
  if (room_ < bytes) return false;
  room_ -= bytes;
  return true;
}

std::string CriuMemory::path() const { return fmt::format("/proc/self/fd/{}", memory_.get()); }

Result<UniqueFd> CriuMemory::open_mapped(const AddressRange& range) const {
  const std::string path =
      fmt::format("/proc/{}/map_files/{:x}-{:x}", pid_, range.start, range.end);
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) return Error::from_errno(errno, "cannot open memory that CRIU maps");
  return file;
}

bool PrefilledArea::make_huge(CriuMemory& criu, std::uint64_t place) {
  const std::uint64_t block = place / kHugePageBytes * kHugePageBytes;
  if (blocks.contains(block)) return true;
  const auto is_made = [&](std::uint64_t other) { return blocks.contains(other); };
  std::uint64_t before = 0;
  while (before < kMostBlocks && is_made(block - (before + 1) * kHugePageBytes)) ++before;
  std::uint64_t end = block + kHugePageBytes;
  while (end < block + before * kHugePageBytes && end < range.end && !is_made(end)) {
    end += kHugePageBytes;
  }
  auto made = criu.ask(Hold::kMakeHuge, in_criu(block), end - block);
  if (!made && end > block + kHugePageBytes) {
    end = block + kHugePageBytes;
    made = criu.ask(Hold::kMakeHuge, in_criu(block), kHugePageBytes);
  }
  if (!made) return false;
  for (std::uint64_t at = block; at < end; at += kHugePageBytes) blocks.insert(at);
  return true;
}

Status PrefilledArea::write_pages(const CriuMemory& criu, std::uint64_t window, const Pages& pages,
                                  std::span<const std::byte> bytes) const {
  for (std::size_t page = 0; page < kWindowPages; ++page) {
    const std::size_t first = page;
    while (page < kWindowPages && pages[page]) ++page;
    const std::size_t length = std::min((page - first) * kPageBytes, bytes.size());
    GCR_TRY(criu.write(in_criu(window + first * kPageBytes), bytes.first(length)));
    bytes = bytes.subspan(length);
  }
  return {};
}

Status PrefilledArea::copy_windows(CriuMemory& criu, const PrefilledArea& before,
                                   const CriuMemory& old) {
  for (const std::uint64_t block : before.blocks) {
    (void)criu.ask(Hold::kMakeHuge, in_criu(block), kHugePageBytes);
  }
  RawBytes bytes(kWindowBytes);
  for (const auto& [window, pages] : before.windows) {
    GCR_TRY(old.read(before.in_criu(window), bytes));
    GCR_TRY(criu.write(in_criu(window), bytes));
  }
  blocks = before.blocks;
  windows = before.windows;
  return {};
}

Status PrefilledArea::clear(const CriuMemory& criu, const AddressRanges& stale,
                            const std::function<Status(const AddressRange&)>& drop) const {
  static constexpr std::array<std::byte, kWorthDropping> kZeros{};
  for (const AddressRange& range : stale) {
    if (range.bytes() < kWorthDropping) {
      GCR_TRY(criu.write(in_criu(range.start), std::span(kZeros).first(range.bytes())));
    } else {
      GCR_TRY(drop(range));
    }
  }
  return {};
}

AddressRanges PrefilledArea::in_place() const {
  AddressRanges ranges;
  for (const auto& [place, pages] : windows) {
    if (pages.all()) {
      append(ranges, {place, place + kWindowBytes});
      continue;
    }
    for (std::size_t page = 0; page < kWindowPages; ++page) {
      if (!pages[page]) continue;
      append(ranges, {place + page * kPageBytes, place + (page + 1) * kPageBytes});
    }
  }
  return ranges;
}

AddressRanges PrefilledArea::empty_blocks() const {
  AddressRanges empty;
  for (const std::uint64_t block : blocks) {
    const auto window = windows.lower_bound(block);
    const bool used = window != windows.end() && window->first < block + kHugePageBytes;
    if (!used) append(empty, {block, block + kHugePageBytes});
  }
  return empty;
}

}  // namespace gcr::criu

// The memory of a CRIU that waits: what is put into it before it forks, the tasks inherit.
#pragma once

#include <sys/types.h>

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>

#include "migrate-agent/criu/launch/holding_point.h"
#include "src/base/address_ranges.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::criu {

/// Any thread, unless noted.
class CriuMemory {
 public:
  /// Of the CRIU at the other end of `line`, which outlives this object, below `init`. At most
  /// `most_bytes` shall be in it before the tasks' dump is over.
  static Result<CriuMemory> open(HoldLine& line, pid_t init, std::uint64_t most_bytes);

  pid_t pid() const { return pid_; }  ///< in the caller's PID namespace

  /// Has a request done while CRIU waits; see HoldLine::ask().
  Result<launch::HoldMessage> ask(const launch::HoldMessage& request);
  Result<launch::HoldMessage> ask(launch::Hold what, std::uint64_t address, std::uint64_t bytes);

  /// Errors of the kernel; then any part may be written.
  Status write(std::uint64_t address, std::span<const std::byte> bytes) const;
  Status read(std::uint64_t address, std::span<std::byte> bytes) const;

  /// Whether there is room for as much more, which is taken then.
  bool take_room(std::uint64_t bytes);

  /// A file that is this memory, for as long as the object lives; and what CRIU maps at `range`,
  /// which is one mapping of a file.
  std::string path() const;
  Result<UniqueFd> open_mapped(const AddressRange& range) const;

 private:
  CriuMemory(HoldLine& line, pid_t pid, UniqueFd memory, std::uint64_t most_bytes)
      : line_(&line), pid_(pid), memory_(std::move(memory)), room_(most_bytes) {}

  HoldLine* line_;
  pid_t pid_;
  UniqueFd memory_;
  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();  ///< guards the line, and
  std::uint64_t room_;
};

/// So often the kernel may have no huge page, before it is not asked any more.
inline constexpr unsigned kMostFailures = 16;

/// A part of the address space of CRIU that stands for a range of a memory, whose windows arrive in
/// any order. One thread at a time, except write_pages().
struct PrefilledArea {
  static constexpr std::uint64_t kPageBytes = 4096;
  static constexpr std::uint64_t kWindowPages = 256;
  static constexpr std::uint64_t kWindowBytes = kWindowPages * kPageBytes;
  /// Of fewer pages a window is not worth huge pages, of which the rest is zeros.
  static constexpr std::size_t kNearlyAll = kWindowPages / 8 * 7;
  using Pages = std::bitset<kWindowPages>;

  AddressRange range;                        ///< in the memory
  AddressRange reserved;                     ///< in CRIU
  std::uint64_t base = 0;                    ///< of `range`, in CRIU
  std::set<std::uint64_t> blocks{};          ///< of huge pages, by place in the memory
  std::map<std::uint64_t, Pages> windows{};  ///< the pages in place, by window

  std::uint64_t in_criu(std::uint64_t place) const { return base + (place - range.start); }

  /// Makes the block of `place` of a huge page, if the kernel has one. With it as many blocks
  /// behind it as there are before it: each request of this kind has to wait for all processors.
  bool make_huge(CriuMemory& criu, std::uint64_t place);

  /// Writes the pages of a window; `bytes` are those, without gaps.
  Status write_pages(const CriuMemory& criu, std::uint64_t window, const Pages& pages,
                     std::span<const std::byte> bytes) const;

  /// Makes this area hold what `before`, in another CRIU, holds: `old` is that one's memory. Where
  /// the kernel has no huge page, in small ones. After an error any part is in place.
  Status copy_windows(CriuMemory& criu, const PrefilledArea& before, const CriuMemory& old);

  /// Makes zeros of what is not true any more: of little by writing, of more by `drop`, which gets
  /// a range of the memory.
  Status clear(const CriuMemory& criu, const AddressRanges& stale,
               const std::function<Status(const AddressRange&)>& drop) const;

  /// All pages that are in place.
  AddressRanges in_place() const;
  /// Blocks that were made ahead, and of which nothing came.
  AddressRanges empty_blocks() const;
};

}  // namespace gcr::criu

// Which memory of a process was written since it was last read: the kernel protects its pages
// against writes, lets every write pass at once, and tells which pages are no longer protected
// (userfaultfd with UFFD_FEATURE_WP_ASYNC, and PAGEMAP_SCAN; Linux 6.7). A first write to a page
// then costs the process less than a microsecond.
//
// In a round pages are protected first and read afterwards: a write during the reading is found by
// the next round. Two kinds of writes need more:
// - A device or a system call that has pinned pages may write to them after they have been
//   protected. Pinning them counts as a write. What is pinned for long has to be known, and is
//   distrusted: a pin that ends before the reading has been read, one that begins later is found
//   by the next round. What is pinned for shorter than a round takes is read in time, because a
//   page that was written is read in that round and in the next.
// - A mapping that was replaced by another is not tracked any more, and the kernel says so.
//
// The process is not trusted: what it does to its userfaultfd damages its own memory alone.
#pragma once

#include <sys/types.h>

#include <chrono>

#include "migrate-agent/process/pages/page_scan.h"
#include "src/base/address_ranges.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::process {

/// Smaller mappings are not tracked: to read them costs less.
inline constexpr std::uint64_t kTrackedFrom = 4 << 20;

/// Of one process. When it is destroyed, or the caller dies, nothing is protected any more, which
/// takes 10 to 20 ms per GiB.
class WriteTracker {
 public:
  using Clock = std::chrono::steady_clock;

  /// `userfaultfd` is what the process gave for one of its memory, without an API handshake.
  /// kUnsupported if it is none, or the kernel cannot track writes.
  static Result<WriteTracker> create(pid_t pid, UniqueFd userfaultfd);

  /// A round, while the process runs. `mappings` are its private anonymous ones. Gives the pages of
  /// them that have to be read now, so that all of them have been read since they were written: in
  /// the first round all that are there. An error if the process is gone.
  Result<AddressRanges> round(const AddressRanges& mappings);

  /// After round(), and before the pages are read: memory that others than the process's threads
  /// may write to, or have begun to. It is read in every further round.
  void distrust(const AddressRanges& ranges);

  /// When nothing runs any more: those of `pages`, all that are there in `mappings`, that have to
  /// be read.
  Result<AddressRanges> last_round(const AddressRanges& mappings, const AddressRanges& pages) const;

  /// What the last round has found written, and the next one reads in any case.
  std::uint64_t written_bytes() const { return bytes_of(written_); }

  /// Rounds before that protect nothing again, so that a process which writes to all of its memory
  /// is not slowed down by more than a fifth.
  Clock::time_point rests_until() const { return rest_until_; }

  /// What is tracked now.
  const AddressRanges& tracked() const { return tracked_; }

 private:
  WriteTracker(pid_t pid, UniqueFd userfaultfd) : pid_(pid), userfaultfd_(std::move(userfaultfd)) {}

  AddressRanges find_written(const PageScan& scan, const AddressRanges& mappings);
  AddressRanges watch_all(const PageScan& scan, const AddressRanges& mappings);
  bool watch(const AddressRange& mapping) const;
  void unwatch(const AddressRange& mapping) const;

  pid_t pid_;
  UniqueFd userfaultfd_;
  AddressRanges tracked_;
  AddressRanges distrusted_;  ///< never tracked again
  AddressRanges written_;     ///< found by the last round, to be read once more
  Clock::time_point rest_until_{};
};

}  // namespace gcr::process

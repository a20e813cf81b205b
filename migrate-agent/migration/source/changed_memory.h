// Which memory of a job's processes has to be read for the next round of images: what was written
// since it was last read, where the kernel and the process can tell, and else all that is there.
#pragma once

#include <sys/types.h>

#include <map>
#include <vector>

#include "migrate-agent/migration/source/source_job.h"
#include "migrate-agent/process/pages/write_tracker.h"

namespace gcr::migration {

/// Used by one thread at a time, that of the job's GpuAccess.
class ChangedMemory {
 public:
  /// Of the job with this root. `members` outlive this object.
  ChangedMemory(pid_t root, const std::vector<migration::Member*>& members);

  /// While the processes run: pages in `mappings`, which are private and anonymous, of one of them.
  /// They are read after this. An error if it is gone.
  Result<AddressRanges> round(pid_t pid, const AddressRanges& mappings);

  /// When nothing runs any more: those of `pages`, all that are there in `mappings`.
  AddressRanges last_round(pid_t pid, const AddressRanges& mappings,
                           const AddressRanges& pages) const;

  /// What is tracked of a process now; none if nothing is.
  AddressRanges tracked(pid_t pid) const;

  /// What the last round has found written where that is tracked.
  std::uint64_t written_bytes() const;

  /// Whether writes to any of the processes are tracked. Then a page is read in the round that
  /// finds it written and in the next: the second round still reads all.
  bool tracks() const;

 private:
  struct Member {
    gpu::GpuAccess* access;
    bool asked = false;  ///< for a userfaultfd
    std::optional<process::WriteTracker> tracker{};
  };

  Status track(pid_t pid, Member& member) const;

  pid_t root_;
  std::map<pid_t, Member> members_;
};

}  // namespace gcr::migration

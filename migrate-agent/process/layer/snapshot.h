// What a tree holds at one time. The program may run meanwhile: what changes during a scan or after
// it, the next scan shows. Any thread; blocking.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "migrate-agent/linux/procfs/directory.h"
#include "migrate-agent/process/layer/rules.h"
#include "migrate-agent/process/layer/tree.h"
#include "src/base/result.h"

namespace gcr::layer {

struct Time {
  std::int64_t seconds = 0;
  std::uint32_t nanoseconds = 0;
  auto operator<=>(const Time&) const = default;
};

/// What two scans are compared by.
struct Facts {
  mode_t mode = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  dev_t device = 0;        ///< of a device node
  std::uint64_t size = 0;  ///< 0 of a directory
  Time modified, changed, born;
  procfs::FileId id;        ///< of the entry in the upper directory, or in the tmpfs
  std::uint32_t links = 0;  ///< 0 of a directory
  Attributes attributes;
  bool operator==(const Facts&) const = default;
};

struct Entry {
  Facts facts;
  bool is_whiteout = false;  ///< the name is removed; it has nothing else
  /// Nothing is in the directory that was there before it; so too in a tmpfs.
  bool is_opaque = false;
  std::string redirect;             ///< the directory has that of another name of the image in it
  bool is_from_image = false;       ///< it is in no upper directory, but in one that was renamed
  bool is_mapped = false;           ///< a process may write to it without a trace
  bool is_left_out = false;         ///< it is carried by other means
  std::uint64_t content_bytes = 0;  ///< without holes; 0 of further names of a file
  /// A later change has a later time. Times come from a clock that ticks every few milliseconds.
  bool is_settled = false;

  /// The destination has nothing there.
  bool is_absent() const { return is_whiteout || is_left_out || S_ISSOCK(facts.mode); }
};

/// By path.
using Entries = std::map<std::string, Entry, PathOrder>;

struct Snapshot {
  Entries entries;  ///< the root of the tree is ""
  std::uint64_t bytes = 0;
  Notes notes;
};

/// Files by the identity that stat(2) shows in the container.
using Files = std::set<procfs::FileId>;

struct KnownFiles {
  Files mapped;    ///< that processes map shared and writable: times do not show all changes
  Files left_out;  ///< that are carried by other means, such as memory files of the job
};

/// Reads what the container has changed: the upper directory of an overlay, with what is in renamed
/// directories of the image; all of a tmpfs, but not what is mounted in it.
/// kResourceExhausted if the tree exceeds the limits, kRefused or kUnsupported if something in it
/// cannot be carried.
Result<Snapshot> scan(const Tree& tree, const Limits& limits, const KnownFiles& known = {});

}  // namespace gcr::layer

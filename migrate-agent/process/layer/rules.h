// What of a container's file system is carried, and the bounds of it; both ends keep them.
//
// Not carried: Unix sockets, which CRIU binds again; attributes other than those of
// is_carried_attribute(); inode flags (chattr), access times. An error: devices other than those of
// check_device(), and names that begin with ".wh.", which have another meaning in a pack.
#pragma once

#include <limits.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/result.h"
#include "src/base/units.h"

namespace gcr::layer {

/// Of a path below the root of a tree: more cannot be opened in one call.
inline constexpr std::size_t kMaxPathBytes = PATH_MAX - 1;
inline constexpr std::size_t kMaxNameBytes = NAME_MAX;

/// Of one tree.
inline constexpr std::size_t kMaxEntries = 1'000'000;

/// Paths and attributes of one tree, which are kept in memory.
inline constexpr std::uint64_t kMaxMetadataBytes = 256 * kMiB;

/// All attributes of one file; libarchive reads headers up to 1 MiB.
inline constexpr std::size_t kMaxAttributeBytes = 256 * kKiB;

/// Of one file, holes included; the longest that ext4 has.
inline constexpr std::uint64_t kMaxFileBytes = 16 * 1024 * kGiB;

/// How much of one tree may be carried, or taken.
struct Limits {
  std::uint64_t max_bytes = 0;  ///< contents without holes
  std::size_t max_entries = kMaxEntries;
};

/// A pack says by names of files what is removed (OCI image specification, "Layer").
inline constexpr std::string_view kWhiteoutPrefix = ".wh.";
inline constexpr std::string_view kOpaqueName = ".wh..wh..opq";

/// Extended attributes by name.
using Attributes = std::map<std::string, std::string>;
bool is_carried_attribute(std::string_view name);

/// Succeeds for the devices that every container has. No other is made at a destination, although
/// its device control group would decide: a node can outlive that group.
Status check_device(const std::string& path, mode_t mode, dev_t device);

/// A directory directly before all that is below it.
struct PathOrder {
  bool operator()(std::string_view left, std::string_view right) const;
};

/// Paths are relative to a tree: "" is its root, "etc/passwd" a file.
std::string join(const std::string& directory, std::string_view name);
std::string parent_of(const std::string& path);
std::string name_of(const std::string& path);
bool is_below(std::string_view path, std::string_view directory);

/// A name of a process or a peer in a message: short, in printable ASCII. A path begins with "/".
std::string shown(std::string_view name);
std::string shown_path(std::string_view path);

/// What was left out and why, as sentences; at most kMost of them, and how many more there were.
class Notes {
 public:
  static constexpr std::size_t kMost = 50;

  void add(std::string note);
  std::vector<std::string> list() const;

 private:
  std::vector<std::string> notes_;
  std::size_t more_ = 0;
};

}  // namespace gcr::layer

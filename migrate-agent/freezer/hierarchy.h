// The hierarchy of control groups that can freeze: version 2 where it is mounted and can, else the
// freezer of version 1. Version 2 is preferred for what it forbids: there a process is moved only
// by who may write to the common ancestor of both groups, in version 1 its owner may move it into
// any group of that owner's.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "src/base/result.h"

namespace gcr::freezer {

/// Zero is never used.
enum class Version : std::uint8_t { kInvalid = 0, kOne = 1, kTwo = 2 };

struct Hierarchy {
  Version version = Version::kInvalid;
  std::filesystem::path mount;  ///< where it is mounted
  std::string root;             ///< the group that is seen there, as /proc/PID/cgroup names groups

  /// The directory of the group that /proc/PID/cgroup names so.
  std::filesystem::path directory_of(const std::string& group) const;
};

/// Every hierarchy of `mountinfo` (the text of /proc/self/mountinfo) that freezes, the preferred
/// one first. Nothing is looked at beside the text.
std::vector<Hierarchy> hierarchies(const std::string& mountinfo);

/// The one that this process can make groups in: its root is writable. kUnsupported with what is
/// missing.
Result<Hierarchy> find_hierarchy();

/// The group that a process is in, as /proc/PID/cgroup names it. kNotFound if the process is gone.
Result<std::string> group_of(const Hierarchy& hierarchy, pid_t pid);

}  // namespace gcr::freezer

// The hierarchies of control groups that this host has: one of version 2, several of version 1, or
// both, each with controllers of its own (cgroups(7)).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/result.h"

namespace gcr::cgroups {

/// Zero is never used.
enum class Version : std::uint8_t { kInvalid = 0, kOne = 1, kTwo = 2 };

struct Hierarchy {
  Version version = Version::kInvalid;
  std::filesystem::path mount;  ///< where it is mounted
  std::string root;             ///< the group that is seen there, as /proc/PID/cgroup names groups
  std::vector<std::string> controllers;

  bool has(std::string_view controller) const;

  /// The directory of the group that /proc/PID/cgroup names so. None for a group that is not below
  /// the one that is seen here.
  std::optional<std::filesystem::path> directory_of(const std::string& group) const;
};

/// Every hierarchy of `mountinfo` (the text of /proc/self/mountinfo), version 2 first. Version 2
/// has the controllers that its root names, and always the freezer and the devices.
std::vector<Hierarchy> hierarchies(const std::string& mountinfo);

/// Those of this process.
std::vector<Hierarchy> hierarchies();

/// The one with this controller, whose root this process can make groups in. kUnsupported with what
/// is missing.
///
/// For the freezer and the devices version 2 is preferred, because it is stricter: moving a process
/// there needs write access to the common ancestor of both groups; in version 1 the process's owner
/// may move it into any group that this owner has.
Result<Hierarchy> find(const std::vector<Hierarchy>& hierarchies, std::string_view controller);

inline constexpr std::string_view kFreezer = "freezer";

/// A line of /proc/PID/cgroup. Version 2 names no controllers.
struct Membership {
  std::vector<std::string> controllers;
  std::string group;
};

std::vector<Membership> memberships(pid_t pid);

/// Whether a line is about this hierarchy.
bool is_of(const Hierarchy& hierarchy, const Membership& membership);

/// The group that a process is in, as /proc/PID/cgroup names it. kNotFound if the process is gone.
Result<std::string> group_of(const Hierarchy& hierarchy, pid_t pid);

/// Writes to a file of a group, in one piece or not at all.
Status write(const std::filesystem::path& file, const std::string& text);

}  // namespace gcr::cgroups

// The control group hierarchies of this host: one of version 2, several of version 1, or both, each
// with its own controllers (cgroups(7)).
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

/// Version of a hierarchy. Zero is never used.
enum class Version : std::uint8_t { kInvalid = 0, kOne = 1, kTwo = 2 };

struct Hierarchy {
  Version version = Version::kInvalid;
  std::filesystem::path mount;  ///< mount point
  std::string root;  ///< the group at the mount point, in the notation of /proc/PID/cgroup
  std::vector<std::string> controllers;

  bool has(std::string_view controller) const;

  /// Returns the directory of a group in the notation of /proc/PID/cgroup. None for a group that is
  /// not visible below the mount point.
  std::optional<std::filesystem::path> directory_of(const std::string& group) const;
};

/// Returns every hierarchy of `mountinfo` (the text of /proc/self/mountinfo), version 2 first.
/// Version 2 has the controllers that its root lists, and always the freezer and devices.
std::vector<Hierarchy> hierarchies(const std::string& mountinfo);

/// Returns the hierarchies that this process sees.
std::vector<Hierarchy> hierarchies();

/// Returns the hierarchy that has this controller and in whose root this process can create groups.
/// kUnsupported, naming what is missing.
///
/// For the freezer and devices version 2 is preferred, because it is stricter: moving a process
/// there needs write access to the common ancestor of both groups; in version 1 the process's owner
/// may move it into any of the owner's groups.
Result<Hierarchy> find(const std::vector<Hierarchy>& hierarchies, std::string_view controller);

inline constexpr std::string_view kFreezer = "freezer";

/// One line of /proc/PID/cgroup. Version 2 lists no controllers.
struct Membership {
  std::vector<std::string> controllers;
  std::string group;
};

std::vector<Membership> memberships(pid_t pid);

/// Returns whether a line concerns this hierarchy.
bool is_of(const Hierarchy& hierarchy, const Membership& membership);

/// Returns the group that a process is in, in the notation of /proc/PID/cgroup. kNotFound if the
/// process is gone.
Result<std::string> group_of(const Hierarchy& hierarchy, pid_t pid);

/// Writes `text` to a file of a group in one write.
Status write(const std::filesystem::path& file, const std::string& text);

}  // namespace gcr::cgroups

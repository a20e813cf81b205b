// A control group for the processes of a job. While the group is frozen, its processes cannot run,
// even when they get signals (design decision 10): any process of the same user can end a SIGSTOP
// by SIGCONT, but only root can thaw a group. While the processes run, the group keeps their
// earlier limits (limits.h).
//
// Groups are created at the top of the hierarchy, which belongs to root, and not below the group of
// the process: in version 2 the owner of a delegated group may move processes among the groups
// below it, and so out of a frozen one. A container's groups belong to its engine, which is root
// too, so the group of a copy that arrives in a container is below them.
//
// Signals to a frozen process take effect: SIGCONT ends a stop, and the process runs when it is
// thawed; SIGKILL ends the process (in version 1 only when it is thawed). Moving a process into
// another group may wait for all CPUs (some 10 ms); freezing and thawing are quick.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "migrate-agent/linux/cgroups/hierarchy.h"
#include "migrate-agent/linux/procfs/process_handle.h"
#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::cgroups {

/// Prefix of the name of a migration's group; the rest is the name of its journal's file.
inline constexpr char kGroupPrefix[] = "gcr-migrate-";

/// A handle for a group, which may exist or not: one directory in the hierarchy that can freeze,
/// and one in each hierarchy with limits. The destructor changes nothing: groups outlive the agent.
/// If no hierarchy can freeze, freezing succeeds and has no effect; preflight has checked that the
/// agent may work without.
class Group {
 public:
  Group() = default;

  /// Uses the given hierarchies only.
  Group(std::vector<Hierarchy> hierarchies, std::string name);

  /// Returns whether the group exists now in the hierarchy that can freeze.
  bool exists() const;

  /// Returns whether the group has no processes.
  bool is_empty() const;

  /// Creates the group; success if it exists.
  Status create() const;

  /// Creates the group with these limits. kUnsupported if this host cannot apply all of them.
  Status create(const proto::GroupLimits& limits) const;

  /// Opens the files to which a process writes "0" in order to join, one for each hierarchy.
  Result<std::vector<UniqueFd>> entries() const;

  /// Moves all threads of a process into the group. kNotFound if the process is gone.
  Status add(const procfs::Process& process) const;

  /// Freezes the group and waits until no thread in it can run. kTimeout after 10 s; the kernel
  /// then continues to freeze.
  Status freeze() const;

  /// Returns whether the group was frozen and not thawed since. False if there is no such group.
  Result<bool> is_frozen() const;

  /// Thaws the group. Success if there is no such group.
  Status thaw() const;

  /// Thaws the group, moves each process to its home (a group as /proc/PID/cgroup names it; the
  /// caller's own group if the home is gone or unknown), and removes the group. Success if there is
  /// no such group.
  using Homes = std::function<std::string(pid_t)>;
  Status dissolve(const Homes& home = {}) const;

  /// Kills all processes of the group, none of which runs again, and removes the group. Success if
  /// there is no such group.
  Status destroy() const;

  /// Returns the group that a process is in, for dissolve(). Empty if no hierarchy can freeze.
  Result<std::string> home_of(pid_t pid) const;

  /// Returns the processes in the group now. Empty if there is no such group.
  std::vector<pid_t> processes() const;

  /// Returns whether this process (not another with its PID) is in the group.
  bool contains(const procfs::Process& process) const;

  /// Returns whether freeze() has an effect.
  bool freezes() const { return freezer_.has_value(); }

  /// Returns the directory with which CRIU can freeze the group (--freeze-cgroup), so that nothing
  /// runs between the end of a dump and freeze(). Empty for version 1: CRIU cannot trace threads
  /// that it has frozen.
  std::filesystem::path directory_for_criu() const;

 private:
  Status freeze_v1() const;
  Status freeze_v2() const;
  Status until_empty(const std::function<Status(const std::string& pid)>& evict) const;
  Status remove() const;

  std::vector<Hierarchy> hierarchies_;
  std::string name_;
  std::optional<Hierarchy> freezer_;
  std::filesystem::path directory_;  ///< in the hierarchy that can freeze
};

/// Returns a group of this name below that of a container. `parent`: the container's group in the
/// hierarchy that can freeze, as /proc/PID/cgroup names it. Only there does it differ from the
/// container's own groups, so all limits of the container hold. kUnsupported if the parent is not
/// visible here.
Result<Group> group_in_container(const std::vector<Hierarchy>& hierarchies,
                                 const std::string& parent, const std::string& name);

/// Opens the files to which a process writes "0" in order to join the groups that `pid` is in, and
/// `group` in the hierarchy that can freeze. kNotFound if `pid` is gone.
Result<std::vector<UniqueFd>> entries_of(const std::vector<Hierarchy>& hierarchies, pid_t pid,
                                         const Group& group);

/// Returns the names of the migrations' groups that have no processes.
std::set<std::string> empty_groups(const std::vector<Hierarchy>& hierarchies);

/// Removes the groups of `names` that still have no processes.
void remove_empty(const std::vector<Hierarchy>& hierarchies, const std::vector<std::string>& names);

}  // namespace gcr::cgroups

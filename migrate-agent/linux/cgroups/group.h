// A control group for the processes of a job. Frozen, it keeps them from running whatever signals
// it gets (design decision 10): anybody's SIGCONT ends a SIGSTOP, but only root can thaw a group.
// While the process runs, the group keeps its earlier limits (limits.h).
//
// Groups are made at the top of the hierarchy, which belongs to root, and not below the group of
// the process: in version 2 the owner of a delegated group may move processes among the groups
// below it, and so out of a frozen one.
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

/// Prefix of a migration's group; the rest is the name of its journal's file.
inline constexpr char kGroupPrefix[] = "gcr-migrate-";

/// The name of a group, which may exist or not: one directory in the hierarchy that freezes, and
/// one in each hierarchy that limits. Destroying it changes nothing: groups outlive the agent.
/// If no hierarchy can freeze, and the agent may do without, freezing succeeds and has no effect.
class Group {
 public:
  Group() = default;

  /// `hierarchies`: those that may be used.
  Group(std::vector<Hierarchy> hierarchies, std::string name);

  /// Whether the group exists now in the hierarchy that freezes.
  bool exists() const;

  /// Whether it has no processes.
  bool is_empty() const;

  /// Makes the group; success if it exists.
  Status create() const;

  /// As create(), with these limits. kUnsupported if they cannot all be kept here.
  Status create(const proto::GroupLimits& limits) const;

  /// What a process writes "0" to in order to join, one file for each hierarchy.
  Result<std::vector<UniqueFd>> entries() const;

  /// Moves all of a process into the group. kNotFound if it is gone.
  Status add(const procfs::Process& process) const;

  /// Freezes, and waits until no thread in the group can run. kTimeout after ten seconds: then they
  /// are still being frozen.
  Status freeze() const;

  /// Whether it was frozen and not thawed since. False if there is no such group.
  Result<bool> is_frozen() const;

  /// Success if there is no such group.
  Status thaw() const;

  /// Thaws, moves each process to its home (a group as /proc/PID/cgroup names it; the caller's own
  /// if that is gone or unknown), and removes the group. Success if there is no such group.
  using Homes = std::function<std::string(pid_t)>;
  Status dissolve(const Homes& home = {}) const;

  /// Kills all its processes, none of which runs again, and removes the group. Success if there is
  /// no such group.
  Status destroy() const;

  /// The group that a process is in, for dissolve(). Empty if none freezes.
  Result<std::string> home_of(pid_t pid) const;

  /// What is in it now. Empty if there is no such group.
  std::vector<pid_t> processes() const;

  /// Whether this very process is in it.
  bool contains(const procfs::Process& process) const;

  /// Whether freeze() has an effect.
  bool freezes() const { return freezer_.has_value(); }

  /// Where CRIU can freeze it (--freeze-cgroup), so that nothing runs between the end of a dump and
  /// freeze(). Empty if it cannot: threads that version 1 has frozen cannot be traced.
  std::filesystem::path directory_for_criu() const;

 private:
  Status freeze_v1() const;
  Status freeze_v2() const;
  Status until_empty(const std::function<Status(const std::string& pid)>& evict) const;
  Status remove() const;

  std::vector<Hierarchy> hierarchies_;
  std::string name_;
  std::optional<Hierarchy> freezer_;
  std::filesystem::path directory_;  ///< in the hierarchy that freezes
};

/// The names of the migrations' groups that have no processes.
std::set<std::string> empty_groups(const std::vector<Hierarchy>& hierarchies);

/// Removes those of them that have no processes now.
void remove_empty(const std::vector<Hierarchy>& hierarchies, const std::vector<std::string>& names);

}  // namespace gcr::cgroups

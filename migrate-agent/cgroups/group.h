// A control group of a process's own. It holds the process still, whatever signals it gets (design
// decision 10): a stop by SIGSTOP ends with anybody's SIGCONT, a frozen group goes on when root
// writes so. And it keeps, as long as the process runs, what limited it before (limits.h).
//
// Groups are made at the top of the hierarchy, which is root's, and not below the group of the
// process: in version 2 the owner of a delegated group may move processes among the groups below
// it, and so out of a frozen one.
//
// A frozen process keeps what signals do to it for later: SIGCONT takes a stop away, SIGKILL ends
// it (in version 1 only when it is thawed). Moving a process into another group may wait for all
// CPUs (some 10 ms); freezing and thawing are quick.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "migrate-agent/cgroups/hierarchy.h"
#include "migrate-agent/procfs/process_handle.h"
#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::cgroups {

/// A migration's group is named so, and after the file of its journal.
inline constexpr char kGroupPrefix[] = "gcr-migrate-";

/// A name for a group, which may be there or not: one directory in the hierarchy that freezes, and
/// one in each hierarchy that limits. Destroying it changes nothing: groups outlive the agent.
/// Where no hierarchy freezes, and an agent may go without, it holds nobody, and to freeze it
/// succeeds.
class Group {
 public:
  Group() = default;

  /// `hierarchies`: those that may be used.
  Group(std::vector<Hierarchy> hierarchies, std::string name);

  /// Whether there is such a group now, to freeze.
  bool exists() const;

  /// Whether nobody is in there.
  bool is_empty() const;

  /// Makes the group; success if it is there.
  Status create() const;

  /// As create(), with these limits. kUnsupported if they cannot all be kept here.
  Status create(const proto::GroupLimits& limits) const;

  /// What a process writes "0" to in order to join, one file for each hierarchy.
  Result<std::vector<UniqueFd>> entries() const;

  /// Moves all of a process into the group. kNotFound if it is gone.
  Status add(const procfs::Process& process) const;

  /// Freezes, and waits until no thread in there can run. kTimeout after ten seconds: then they are
  /// about to be frozen.
  Status freeze() const;

  /// Whether it was told to freeze and not to thaw since. False if there is no such group.
  Result<bool> is_frozen() const;

  /// Success if there is no such group.
  Status thaw() const;

  /// Thaws, moves who is in there to the group `home` (as /proc/PID/cgroup names it; the caller's
  /// own if that is gone), and removes the group. Success if there is no such group.
  Status dissolve(const std::string& home = {}) const;

  /// Kills all that is in there, of which nothing runs again, and removes the group. Success if
  /// there is no such group.
  Status destroy() const;

  /// The group that a process is in, for dissolve(). Empty if none freezes.
  Result<std::string> home_of(const procfs::Process& process) const;

  /// Whether what freeze() was told to hold is held.
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

/// The names of the groups of migrations that nobody is in.
std::set<std::string> empty_groups(const std::vector<Hierarchy>& hierarchies);

/// Those of them that nobody is in by now.
void remove_empty(const std::vector<Hierarchy>& hierarchies, const std::vector<std::string>& names);

}  // namespace gcr::cgroups

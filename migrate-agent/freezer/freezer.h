// A control group that holds a process still, whatever signals it gets (design decision 10): a stop
// by SIGSTOP ends with anybody's SIGCONT, a frozen group goes on when root writes so.
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
#include <string>

#include "migrate-agent/freezer/hierarchy.h"
#include "migrate-agent/process/process_handle.h"
#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::freezer {

/// A name for a group, which may be there or not. Destroying it changes nothing: groups outlive the
/// agent. A Group without a hierarchy, where an agent may go without a freezer, holds nobody, and
/// all that it does succeeds.
class Group {
 public:
  Group() = default;
  Group(Hierarchy hierarchy, const std::string& name);

  /// Whether there is such a group now.
  bool exists() const;

  /// Makes the group; success if it is there.
  Status create() const;

  /// What a process writes "0" to in order to join. None without a hierarchy.
  Result<UniqueFd> entry() const;

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

  /// The group that a process is in, for dissolve(). Empty without a hierarchy.
  Result<std::string> home_of(const procfs::Process& process) const;

  /// Whether there is a hierarchy: what freeze() was told to hold is held.
  explicit operator bool() const { return hierarchy_.has_value(); }

  /// Where CRIU can freeze it (--freeze-cgroup), so that nothing runs between the end of a dump and
  /// freeze(). Empty if it cannot: threads that version 1 has frozen cannot be traced.
  std::filesystem::path directory_for_criu() const;

 private:
  Status write(const char* file, const std::string& text) const;
  Status freeze_v1() const;
  Status freeze_v2() const;
  Status until_empty(const std::function<Status(const std::string& pid)>& evict) const;
  Status remove() const;

  std::optional<Hierarchy> hierarchy_;
  std::filesystem::path directory_;
};

}  // namespace gcr::freezer

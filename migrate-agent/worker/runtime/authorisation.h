// Who may send which requests. A certificate's role, or being a user of this host, decides which
// requests; [[operators]] of agent.toml decides for whose processes, [[peers]] from which agents
// (migrate-agent/worker/config/peers.h).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "migrate-agent/worker/config/config.h"
#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/control/control_channel.h"

namespace gcr::worker {

/// Whether a connection of `asker` may begin with this request. kPermissionDenied;
/// kProtocol if no connection begins with it.
Status may_ask(const control::PeerIdentity& asker, proto::Envelope::BodyCase request);

/// A process that may be moved; the start time tells it from a later process with the same PID.
struct MovableProcess {
  std::uint64_t start_time = 0;  ///< field 22 of /proc/PID/stat
  uid_t uid = 0;                 ///< its user: root if any user id of any thread is root's
  gid_t gid = 0;                 ///< its effective group, likewise
};

/// The users whose processes one peer may move, and whose migrations it may see and control. By
/// default nobody's. Immutable; any thread.
class Permissions {
 public:
  Permissions() = default;

  /// The permissions of `asker`. An operator: what the rules with its common name and with "*" give
  /// together; everything if there are no rules at all. Root of this host: everything. Another
  /// local user: their own. Everybody else: nothing. Looks user names up; unknown names give
  /// nothing.
  static Permissions of(const control::PeerIdentity& asker, const std::vector<OperatorRule>& rules);

  /// Whether the processes of all users are included.
  bool everyone() const { return everyone_; }

  /// What is left of them where a user can read afterwards what was moved, as in a store of
  /// checkpoints, which is `owner`'s: that user's processes alone, without capabilities and
  /// traceable by that user. All of them where everybody's processes are included, or the owner is
  /// root.
  Permissions for_store_of(uid_t owner) const;

  bool may_move(uid_t uid) const { return everyone_ || uids_.contains(uid); }

  /// kPermissionDenied, naming the asker and the user.
  Status check(uid_t uid) const;

  /// Checks the process: every user id of every thread must be one of those. For a local user it
  /// must also hold no capabilities and be traceable by that user (PR_GET_DUMPABLE), which a setuid
  /// program is not. kNotFound if there is no such process, if it was replaced during the check, or
  /// if it began at another time than `start_time` (field 22 of /proc/PID/stat; 0: whenever it
  /// did).
  ///
  /// It holds for that moment: a process that executes a program afterwards may be another user's.
  Result<MovableProcess> check_process(pid_t pid, std::uint64_t start_time = 0) const;

  /// The same of a thread by its rights as they were dumped, whether it may be traced excepted.
  Status check_thread(const proto::Credentials& thread) const;

 private:
  Status check_thread(const std::string& process, const std::vector<uid_t>& uids,
                      std::uint64_t capabilities) const;
  Status check_traceable(const std::string& task, pid_t pid) const;
  struct ThreadIds {
    std::vector<uid_t> uids;
    std::vector<gid_t> gids;
  };
  Result<ThreadIds> check_thread_of(pid_t pid, pid_t tid) const;
  Error denied(uid_t uid) const;
  Error too_mighty(const std::string& process, std::string_view how) const;

  std::string asker_;
  bool everyone_ = false;
  bool plain_only_ = false;  ///< no capabilities, and traceable
  const char* why_not_ = "no [[operators]] of the agent's configuration allows it";
  const char* who_may_ = "";  ///< what is not plain
  std::set<uid_t> uids_;
};

}  // namespace gcr::worker

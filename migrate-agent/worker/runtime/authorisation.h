// Authorisation of requests. The role in a certificate, or being a local user, decides which
// requests are allowed; [[operators]] of agent.toml decides for which users' processes, [[peers]]
// from which agents (migrate-agent/worker/config/certificates.h).
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

/// Checks whether a connection of `asker` may begin with this request. kPermissionDenied; kProtocol
/// if no connection begins with it.
Status may_ask(const control::PeerIdentity& asker, proto::Envelope::BodyCase request);

/// A process that may be moved; the start time distinguishes it from a later process with the same
/// PID.
struct MovableProcess {
  std::uint64_t start_time = 0;  ///< field 22 of /proc/PID/stat
  uid_t uid = 0;                 ///< its user: root if any user id of any thread is root's
  gid_t gid = 0;                 ///< its effective group; root's if the user is root
};

/// The users whose processes a peer may move, and whose migrations it may see and control; none by
/// default. Immutable; any thread.
class Permissions {
 public:
  Permissions() = default;

  /// Returns the permissions of `asker`. For an operator: the union of the rules for its common
  /// name and for "*"; all users if there are no rules at all. For root of this host: all users.
  /// For another local user: only that user. For any other peer: none. Looks up user names; unknown
  /// names add nothing.
  static Permissions of(const control::PeerIdentity& asker, const std::vector<OperatorRule>& rules);

  /// Returns whether the processes of all users are included.
  bool everyone() const { return everyone_; }

  /// Returns the permissions that remain if `owner` can read afterwards what was moved, as in a
  /// store of checkpoints: only processes of `owner`, without capabilities and traceable by that
  /// user. Permissions for all users, and those for a store of root, are not reduced.
  Permissions for_store_of(uid_t owner) const;

  bool may_move(uid_t uid) const { return everyone_ || uids_.contains(uid); }

  /// Checks a user. kPermissionDenied, naming the asker and the user.
  Status check(uid_t uid) const;

  /// Checks the process: the permissions must include every user id of every thread. For a local
  /// user the process must also hold no capabilities and be traceable by that user
  /// (PR_GET_DUMPABLE), which a setuid program is not. kNotFound if there is no such process, if it
  /// was replaced during the check, or if its start time is not `start_time` (field 22 of
  /// /proc/PID/stat; 0: any).
  ///
  /// The result is valid only for that moment: a process that executes a program afterwards may
  /// belong to another user.
  Result<MovableProcess> check_process(pid_t pid, std::uint64_t start_time = 0) const;

  /// Checks a thread by the rights that were dumped, in the same way except for traceability.
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
  Error too_privileged(const std::string& process, std::string_view how) const;

  std::string asker_;
  bool everyone_ = false;
  bool plain_only_ = false;  ///< only processes without capabilities that are traceable
  const char* denial_reason_ = "no [[operators]] of the agent's configuration allows it";
  const char* exception_ = "";  ///< who may still move a process that is not plain
  std::set<uid_t> uids_;
};

}  // namespace gcr::worker

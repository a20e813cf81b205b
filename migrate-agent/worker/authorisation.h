// Who may ask for what. A certificate's role, or being a user of this host, decides which requests;
// [[operators]] of agent.toml decides whose processes, [[peers]] from which agents.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "migrate-agent/config/config.h"
#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/control/control_channel.h"

namespace gcr::agent {

/// Whether a connection of `asker` may begin with this request at all. kPermissionDenied;
/// kProtocol if no connection begins with it.
Status may_ask(const control::PeerIdentity& asker, proto::Envelope::BodyCase request);

/// Whether this agent takes migrations of `agent`: one of `peers`, or any if there are none.
/// kPermissionDenied.
Status may_send(const control::PeerIdentity& agent, const std::vector<std::string>& peers);

/// A process that may be moved, so that no later one with its number is taken for it.
struct MovableProcess {
  std::uint64_t start_time = 0;  ///< field 22 of /proc/PID/stat
  uid_t uid = 0;                 ///< whose it is: root's if any of its threads is root's in any way
};

/// The users whose processes one peer may move, and whose migrations it may see and control.
/// Without any, a default one, it is nobody. Immutable; any thread.
class Permissions {
 public:
  Permissions() = default;

  /// What `asker` may. An operator: what the rules with its common name and with "*" give together,
  /// everything if there are no rules at all. Root of this host: everything. Another local user:
  /// their own. Everybody else nothing. Looks user names up; one that this host does not know gives
  /// nothing.
  static Permissions of(const control::PeerIdentity& asker, const std::vector<OperatorRule>& rules);

  /// Whether it is everybody's, whoever they are.
  bool everyone() const { return everyone_; }

  bool may_move(uid_t uid) const { return everyone_ || uids_.contains(uid); }

  /// kPermissionDenied, saying who may not do it to whose.
  Status check(uid_t uid) const;

  /// Looks at the process: every user id of every thread must be one of those. A local user's, on
  /// top of that, must hold no capabilities and must be one that its user could trace
  /// (PR_GET_DUMPABLE): what a setuid program made of itself is not theirs. kNotFound if there is
  /// no such process, or if it was replaced while it was looked at.
  Result<MovableProcess> check_process(pid_t pid) const;

 private:
  Status check_thread(const std::string& task, pid_t pid) const;
  Error denied(uid_t uid) const;

  std::string asker_;
  bool everyone_ = false;
  bool local_ = false;
  std::set<uid_t> uids_;
};

}  // namespace gcr::agent

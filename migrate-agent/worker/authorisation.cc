#include "migrate-agent/worker/authorisation.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "migrate-agent/procfs/procfs.h"
#include "src/base/users.h"

namespace gcr::agent {
namespace {

using proto::Envelope;

constexpr const char* kEverything = "*";

Error not_allowed(const control::PeerIdentity& asker, std::string_view role,
                  std::string_view what) {
  if (asker.uid) {
    return Error(Code::kPermissionDenied,
                 fmt::format("local users may not {}: an {}'s certificate is needed", what, role));
  }
  return Error(Code::kPermissionDenied,
               fmt::format("the certificate of \"{}\" does not allow it to {}: it lacks the URI "
                           "gcr:role:{}",
                           asker.common_name, what, role));
}

/// The four numbers after "Uid:" or "Gid:": real, effective, saved, and that of the file system.
std::vector<uid_t> ids_of(const std::string& task, const char* field) {
  std::istringstream numbers(procfs::status_field(task, field));
  std::vector<uid_t> uids;
  for (uid_t uid = 0; numbers >> uid;) uids.push_back(uid);
  return uids;
}

Error gone(pid_t pid) {
  return Error(Code::kNotFound, fmt::format("there is no process {} on this host", pid));
}

}  // namespace

Status may_ask(const control::PeerIdentity& asker, Envelope::BodyCase request) {
  switch (request) {
    case Envelope::kMigrateRequest:
    case Envelope::kLoadRequest:
    case Envelope::kCheckRequest:
    case Envelope::kCancelRequest:
    case Envelope::kContinueRequest:
    case Envelope::kAdjustRequest:
    case Envelope::kListRequest:
    case Envelope::kStatusRequest:
    case Envelope::kHostRequest:
    case Envelope::kSuspendRequest:
    case Envelope::kResumeRequest:
      if (asker.is_operator || asker.uid) return {};
      return not_allowed(asker, "operator", "ask for a migration or about one");
    case Envelope::kResolveRequest:
      if (asker.is_operator || asker.uid == uid_t{0}) return {};
      return not_allowed(asker, "operator", "decide what the agents cannot");
    case Envelope::kPreflightRequest:
    case Envelope::kOutcomeRequest:
    case Envelope::kCommitRequest:
      if (asker.is_agent) return {};
      return not_allowed(asker, "agent", "send a process or settle what became of one");
    default:
      return Error(Code::kProtocol, "a connection does not begin with this message");
  }
}

Permissions Permissions::of(const control::PeerIdentity& asker,
                            const std::vector<OperatorRule>& rules) {
  Permissions permissions;
  permissions.asker_ = asker.uid ? fmt::format("the local user {}", describe_user(*asker.uid))
                                 : fmt::format("the operator \"{}\"", asker.common_name);
  if (asker.uid) {
    permissions.local_ = true;
    permissions.everyone_ = *asker.uid == 0;
    permissions.uids_.insert(*asker.uid);
    return permissions;
  }
  if (!asker.is_operator) return permissions;
  permissions.everyone_ = rules.empty();
  for (const OperatorRule& rule : rules) {
    if (rule.name != asker.common_name && rule.name != kEverything) continue;
    for (const std::string& user : rule.users) {
      if (user == kEverything) permissions.everyone_ = true;
      if (const auto uid = user_id(user)) permissions.uids_.insert(*uid);
    }
  }
  return permissions;
}

Error Permissions::denied(uid_t uid) const {
  const char* why = local_ ? "a local user may move their own processes only"
                           : "no [[operators]] of the agent's configuration allows it";
  return Error(Code::kPermissionDenied,
               fmt::format("{} may not move processes of {}, nor ask about their migrations: {}",
                           asker_, describe_user(uid), why));
}

Status Permissions::check(uid_t uid) const {
  if (may_move(uid)) return {};
  return denied(uid);
}

Status Permissions::check_thread(const std::string& task, pid_t pid) const {
  for (const uid_t uid : ids_of(task, "Uid")) GCR_TRY(check(uid));
  if (!local_ || everyone_) return {};
  if (procfs::status_bits(task, "CapPrm") != 0) {
    return Error(Code::kPermissionDenied,
                 fmt::format("process {} holds capabilities: only an operator may move it", pid));
  }
  // Not the directory itself: that one is the effective user's whatever the process protects.
  struct stat info {};
  if (::stat(("/proc/" + task + "/environ").c_str(), &info) != 0) return gone(pid);
  if (may_move(info.st_uid)) return {};
  return Error(Code::kPermissionDenied,
               fmt::format("process {} protects itself from being traced by its user "
                           "(PR_SET_DUMPABLE, or a setuid program): only an operator may move it",
                           pid));
}

Result<MovableProcess> Permissions::check_process(pid_t pid, std::uint64_t start_time) const {
  const std::string process = std::to_string(pid);
  const auto before = pid > 0 ? procfs::read_stat(pid) : std::nullopt;
  if (!before) return gone(pid);
  if (start_time != 0 && before->start_time != start_time) {
    return Error(Code::kNotFound,
                 fmt::format("process {} is another one: what had this PID has ended", pid));
  }
  MovableProcess found{.start_time = before->start_time, .uid = 0};
  bool is_roots = false;
  for (const pid_t tid : procfs::threads(pid)) {
    const std::string task = fmt::format("{}/task/{}", pid, tid);
    const std::vector<uid_t> uids = ids_of(task, "Uid");
    is_roots = is_roots || std::ranges::count(uids, uid_t{0}) > 0;
    GCR_TRY(check_thread(task, pid));
  }
  const std::vector<uid_t> uids = ids_of(process, "Uid");
  const std::vector<gid_t> gids = ids_of(process, "Gid");
  const auto after = procfs::read_stat(pid);
  if (uids.size() < 2 || gids.size() < 2 || !after || after->start_time != before->start_time)
    return gone(pid);
  found.uid = is_roots ? 0 : uids[1];
  found.gid = is_roots ? 0 : gids[1];
  return found;
}

}  // namespace gcr::agent

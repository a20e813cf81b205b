#include "migrate-agent/worker/runtime/authorisation.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <sstream>

#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/side_by_side.h"
#include "src/base/users.h"

namespace gcr::worker {
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

/// Parses a "Uid:" or "Gid:" line of the kernel: real, effective, saved and file system id.
std::vector<uid_t> ids_in(const std::string& line) {
  std::istringstream numbers(line);
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
      return not_allowed(asker, "operator", "order or query migrations");
    case Envelope::kResolveRequest:
      if (asker.is_operator || asker.uid == uid_t{0}) return {};
      return not_allowed(asker, "operator", "resolve a migration");
    case Envelope::kPreflightRequest:
    case Envelope::kOutcomeRequest:
    case Envelope::kCommitRequest:
      if (asker.is_agent) return {};
      return not_allowed(asker, "agent", "send a process or settle a migration");
    default:
      return Error(Code::kProtocol, "this message cannot be the first of a connection");
  }
}

Permissions Permissions::of(const control::PeerIdentity& asker,
                            const std::vector<OperatorRule>& rules) {
  Permissions permissions;
  permissions.asker_ = asker.uid ? fmt::format("the local user {}", describe_user(*asker.uid))
                                 : fmt::format("the operator \"{}\"", asker.common_name);
  if (asker.uid) {
    permissions.everyone_ = *asker.uid == 0;
    permissions.plain_only_ = !permissions.everyone_;
    permissions.denial_reason_ = "a local user may move only their own processes";
    permissions.exception_ = "only an operator may move it";
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

Permissions Permissions::for_store_of(uid_t owner) const {
  if (everyone_ || plain_only_ || owner == 0) return *this;
  Permissions stored = *this;
  std::erase_if(stored.uids_, [owner](uid_t uid) { return uid != owner; });
  stored.plain_only_ = true;
  stored.denial_reason_ =
      "the owner of a checkpoint can read it, so it may hold only that user's processes, unless "
      "the operator may move those of all users";
  stored.exception_ = "only an operator who may move all users' processes may store it";
  return stored;
}

Error Permissions::denied(uid_t uid) const {
  return Error(Code::kPermissionDenied,
               fmt::format("{} may not move processes of {}, nor ask about their migrations: {}",
                           asker_, describe_user(uid), denial_reason_));
}

Status Permissions::check(uid_t uid) const {
  if (may_move(uid)) return {};
  return denied(uid);
}

Error Permissions::too_privileged(const std::string& process, std::string_view how) const {
  return Error(Code::kPermissionDenied, fmt::format("process {} {}: {}", process, how, exception_));
}

Status Permissions::check_thread(const std::string& process, const std::vector<uid_t>& uids,
                                 std::uint64_t capabilities) const {
  for (const uid_t uid : uids) GCR_TRY(check(uid));
  if (!plain_only_ || capabilities == 0) return {};
  return too_privileged(process, "holds capabilities");
}

/// Checks that the user of a thread could trace it. Succeeds for a thread that has ended.
Status Permissions::check_traceable(const std::string& task, pid_t pid) const {
  if (!plain_only_) return {};
  // The directory itself does not show it: its owner is the effective user even if the process
  // protects itself.
  struct stat info {};
  if (::stat(("/proc/" + task + "/environ").c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ESRCH) return {};
    return Error::from_errno(errno, "cannot examine process " + task);
  }
  if (may_move(info.st_uid)) return {};
  return too_privileged(
      std::to_string(pid),
      "protects itself from being traced by its user (PR_SET_DUMPABLE, or a setuid program)");
}

Status Permissions::check_thread(const proto::Credentials& thread) const {
  return check_thread(std::to_string(thread.thread()), {thread.uids().begin(), thread.uids().end()},
                      thread.permitted());
}

Result<Permissions::ThreadIds> Permissions::check_thread_of(pid_t pid, pid_t tid) const {
  const std::string task = fmt::format("{}/task/{}", pid, tid);
  const auto status = procfs::status_fields(task);
  const auto field = [&status](const char* name) {
    const auto line = status.find(name);
    return line == status.end() ? std::string() : line->second;
  };
  ThreadIds ids{ids_in(field("Uid")), ids_in(field("Gid"))};
  GCR_TRY(check_thread(std::to_string(pid), ids.uids, procfs::bits_in(status, "CapPrm")));
  GCR_TRY(check_traceable(task, pid));
  return ids;
}

Result<MovableProcess> Permissions::check_process(pid_t pid, std::uint64_t start_time) const {
  const std::string process = std::to_string(pid);
  const auto before = pid > 0 ? procfs::read_stat(pid) : std::nullopt;
  if (!before) return gone(pid);
  if (start_time != 0 && before->start_time != start_time) {
    return Error(Code::kNotFound, fmt::format("PID {} now belongs to another process", pid));
  }
  const std::vector<pid_t> tids = procfs::threads(pid);
  std::vector<ThreadIds> threads(tids.size());
  GCR_TRY(share_out_brief(tids.size(), [&](std::size_t i) -> Status {
    GCR_ASSIGN(threads[i], check_thread_of(pid, tids[i]));
    return {};
  }));
  MovableProcess found{.start_time = before->start_time, .uid = 0};
  bool is_roots = false;
  bool is_there = false;
  for (std::size_t i = 0; i < tids.size(); ++i) {
    const auto& [uids, gids] = threads[i];
    is_roots = is_roots || std::ranges::count(uids, uid_t{0}) > 0;
    if (tids[i] != pid || uids.size() < 2 || gids.size() < 2) continue;
    found.uid = uids[1];
    found.gid = gids[1];
    is_there = true;
  }
  const auto after = procfs::read_stat(pid);
  if (!is_there || !after || after->start_time != before->start_time) return gone(pid);
  if (is_roots) found.uid = found.gid = 0;
  return found;
}

}  // namespace gcr::worker

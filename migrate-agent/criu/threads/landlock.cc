#include "migrate-agent/criu/threads/landlock.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>

#include "migrate-agent/criu/threads/apart.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/raw_bytes.h"

namespace gcr::criu {
namespace {

constexpr std::size_t kStartStackBytes = std::size_t{64} << 10;
/// Does nothing until its input ends, and has no secrets.
constexpr char kBystander[] = "/bin/cat";

bool kernel_has_landlock() {
  constexpr long kCreateRuleset = 444;
  constexpr unsigned kVersion = 1;
  return ::syscall(kCreateRuleset, nullptr, 0, kVersion) > 0;
}

/// What the processes of a start share: both run in the caller's memory until the second executes.
struct Start {
  int namespaces;
  int input;
  uid_t uid;
  gid_t gid;
  std::byte* stack;
  pid_t pid = -1;
  int error = 0;
};

bool become(const Start& start) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::dup2(start.input, fd) != fd) return false;
  }
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const __user_cap_data_struct none[2]{};
  // Raw calls: libc's change all threads of the caller's process.
  return ::syscall(SYS_close_range, STDERR_FILENO + 1, ~0u, 0) == 0 &&
         ::syscall(SYS_setgroups, 0, nullptr) == 0 &&
         ::syscall(SYS_setresgid, start.gid, start.gid, start.gid) == 0 &&
         ::syscall(SYS_setresuid, start.uid, start.uid, start.uid) == 0 &&
         ::syscall(SYS_capset, &header, none) == 0 &&
         ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;  // root gains nothing by the exec either
}

int run_bystander(void* argument) {
  Start& start = *static_cast<Start*>(argument);
  static char name[] = "gcr-bystander";
  static char* const words[] = {name, nullptr};
  static char* const environment[] = {nullptr};
  if (become(start)) ::execve(kBystander, words, environment);
  start.error = errno;
  ::_exit(127);
}

/// The namespace counts for children only.
int run_parent(void* argument) {
  Start& start = *static_cast<Start*>(argument);
  if (::setns(start.namespaces, CLONE_NEWPID) == 0) {
    start.pid =
        ::clone(run_bystander, start.stack, CLONE_VM | CLONE_VFORK | CLONE_PARENT, argument);
  }
  if (start.pid < 0) start.error = errno;
  ::_exit(0);
}

void wait_for_end(pid_t pid) {
  while (::waitpid(pid, nullptr, __WALL) < 0 && errno == EINTR) {
  }
}

/// An unprivileged thread can restrict itself only with no_new_privs.
bool can_restrict_itself(std::map<std::string, std::string>& status) {
  const std::uint64_t effective = procfs::bits_in(status, "CapEff");
  return status["NoNewPrivs"] == "1" || (effective & (std::uint64_t{1} << CAP_SYS_ADMIN)) != 0;
}

Result<bool> ask(const Bystanders& bystanders, const std::shared_ptr<const CallSite>& site,
                 pid_t tid, std::map<std::string, std::string>& status) {
  const auto question = bystanders.question(owner_of(status));
  if (!question) return false;
  GCR_ASSIGN(auto thread, ThreadCalls::seize(site, tid, status["Seccomp"] != "0"));
  GCR_TRY(thread->wait_until_stopped());
  GCR_ASSIGN(const std::int64_t answer, thread->call(*question));
  GCR_TRY(thread->let_go());
  return Bystanders::is_in_domain(answer);
}

}  // namespace

Owner owner_of(const std::map<std::string, std::string>& status) {
  const auto first = [&status](const char* name) {
    const auto found = status.find(name);
    return found == status.end() ? 0 : std::strtoul(found->second.c_str(), nullptr, 10);
  };
  return {static_cast<uid_t>(first("Uid")), static_cast<gid_t>(first("Gid"))};
}

Bystanders::~Bystanders() {
  for (auto& [owner, bystander] : started_) {
    bystander.lifeline.reset();
    (void)::kill(bystander.pid, SIGKILL);
    wait_for_end(bystander.pid);
  }
}

Status Bystanders::prepare(const std::set<Owner>& owners) {
  if (!kernel_has_landlock()) return {};
  for (const Owner& owner : owners) {
    GCR_ASSIGN(started_[owner], start(owner.first, owner.second));
  }
  return {};
}

Result<Bystanders::Bystander> Bystanders::start(uid_t uid, gid_t gid) const {
  GCR_ASSIGN(const UniqueFd namespaces, procfs::open_pidfd(neighbour_));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Error::from_errno(errno, "cannot make a pipe");
  const UniqueFd input(ends[0]);
  Bystander made;
  made.lifeline = UniqueFd(ends[1]);
  RawBytes stacks(2 * kStartStackBytes);
  Start start{namespaces.get(), input.get(), uid, gid, stacks.end()};
  const pid_t parent =
      ::clone(run_parent, stacks.data() + kStartStackBytes, CLONE_VM | CLONE_VFORK, &start);
  if (parent < 0) return Error::from_errno(errno, "cannot start a process");
  wait_for_end(parent);
  if (start.pid > 0 && start.error != 0) wait_for_end(start.pid);
  if (start.error != 0) {
    return Error::from_errno(
        start.error, fmt::format("cannot start a process of user {} and group {}", uid, gid));
  }
  made.pid = start.pid;
  const std::vector<pid_t> pids = procfs::namespace_pids(std::to_string(start.pid));
  if (pids.empty()) return Error(Code::kInternal, "a bystander has ended");
  made.inside = pids.back();
  return made;
}

std::optional<ThreadCall> Bystanders::question(const Owner& of_thread) const {
  const auto found = started_.find(of_thread);
  if (found == started_.end()) return std::nullopt;
  // Without a place for the answer: EFAULT is permission.
  return ThreadCall{SYS_get_robust_list, {static_cast<std::uint64_t>(found->second.inside)}};
}

Result<bool> Bystanders::is_in_domain(std::int64_t answer) {
  if (answer == -EFAULT) return false;
  if (answer == -EPERM) return true;
  return Error::from_errno(static_cast<int>(-answer),
                           "cannot tell whether a thread is in Landlock");
}

std::vector<pid_t> threads_in_landlock(pid_t pid) {
  std::map<pid_t, std::map<std::string, std::string>> candidates;
  std::set<Owner> owners;
  for (const pid_t tid : procfs::threads(pid)) {
    auto status = procfs::status_fields(fmt::format("{}/task/{}", pid, tid));
    if (!can_restrict_itself(status)) continue;
    owners.insert(owner_of(status));
    candidates.emplace(tid, std::move(status));
  }
  std::vector<pid_t> found;
  Bystanders bystanders(pid);
  if (!kernel_has_landlock() || candidates.empty() || !bystanders.prepare(owners)) return {};
  (void)run_apart([&]() -> Status {
    GCR_ASSIGN(const auto site, CallSite::find(pid));
    for (auto& [tid, status] : candidates) {
      const auto confined = ask(bystanders, site, tid, status);
      if (confined && *confined) found.push_back(tid);
    }
    return {};
  });
  return found;
}

}  // namespace gcr::criu

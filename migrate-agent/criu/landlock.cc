#include "migrate-agent/criu/landlock.h"

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
#include <sstream>

#include "migrate-agent/criu/apart.h"
#include "migrate-agent/procfs/procfs.h"
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

/// The real one, which is what counts for an access by a system call.
std::pair<uid_t, gid_t> owner_of_thread(pid_t tid) {
  auto fields = procfs::status_fields(std::to_string(tid));
  uid_t uid = 0;
  gid_t gid = 0;
  std::istringstream(fields["Uid"]) >> uid;
  std::istringstream(fields["Gid"]) >> gid;
  return {uid, gid};
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
bool can_restrict_itself(const std::string& task) {
  return procfs::status_field(task, "NoNewPrivs") == "1" ||
         (procfs::status_bits(task, "CapEff") & (std::uint64_t{1} << CAP_SYS_ADMIN)) != 0;
}

}  // namespace

Bystanders::~Bystanders() {
  for (auto& [owner, bystander] : started_) {
    bystander.lifeline.reset();
    (void)::kill(bystander.pid, SIGKILL);
    wait_for_end(bystander.pid);
  }
}

Status Bystanders::prepare(const std::vector<pid_t>& tids) {
  if (!kernel_has_landlock()) return {};
  for (const pid_t tid : tids) {
    const auto owner = owner_of_thread(tid);
    if (started_.contains(owner)) continue;
    GCR_ASSIGN(started_[owner], start(owner.first, owner.second));
  }
  return {};
}

Result<Bystanders::Bystander> Bystanders::start(uid_t uid, gid_t gid) const {
  GCR_ASSIGN(const UniqueFd namespaces, procfs::open_pidfd(beside_));
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

Result<bool> Bystanders::is_in_domain(ThreadCalls& thread) const {
  const auto found = started_.find(owner_of_thread(thread.tid()));
  if (found == started_.end()) return false;
  // Without a place for the answer: EFAULT is permission.
  ThreadCall call{SYS_get_robust_list, {static_cast<std::uint64_t>(found->second.inside)}};
  GCR_ASSIGN(const std::int64_t result, thread.call(call));
  if (result == -EFAULT) return false;
  if (result == -EPERM) return true;
  return Error::from_errno(static_cast<int>(-result),
                           "cannot tell whether a thread is in Landlock");
}

std::vector<pid_t> threads_in_landlock(pid_t pid) {
  std::vector<pid_t> candidates = procfs::threads(pid);
  std::erase_if(candidates, [pid](pid_t tid) {
    return !can_restrict_itself(fmt::format("{}/task/{}", pid, tid));
  });
  std::vector<pid_t> found;
  Bystanders bystanders(pid);
  if (!kernel_has_landlock() || candidates.empty() || !bystanders.prepare(candidates)) return {};
  (void)run_apart([&]() -> Status {
    GCR_ASSIGN(const auto site, CallSite::find(pid));
    for (const pid_t tid : candidates) {
      auto thread = ThreadCalls::stop(site, tid);
      if (!thread) continue;
      const auto confined = bystanders.is_in_domain(*thread);
      (void)thread->let_go();
      if (confined && *confined) found.push_back(tid);
    }
    return {};
  });
  return found;
}

}  // namespace gcr::criu

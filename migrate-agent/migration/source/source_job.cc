#include "migrate-agent/migration/source/source_job.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <set>
#include <thread>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/process/inspect/descriptors.h"
#include "src/base/side_by_side.h"

namespace gcr::migration {
namespace {

/// A closed gate opens by itself after so long without the agent, unless VRAM was detached.
constexpr std::chrono::seconds kGateLease{30};
/// The most scans, each for processes that were started since the one before.
constexpr int kMostScans = 100;
/// The longest wait for children in vfork: each takes under a millisecond, but they may be many.
constexpr std::chrono::seconds kVforkPatience{5};
constexpr std::chrono::microseconds kVforkPause{200};

std::vector<gpu::Gates::Member> gates_of(const std::vector<Member*>& members, bool driver_alone) {
  std::vector<gpu::Gates::Member> gates;
  for (const Member* member : members) {
    if (!driver_alone && member->access->is_driver_alone()) continue;
    gates.push_back({member->pid(), member->access.get()});
  }
  return gates;
}

}  // namespace

SourceJob::SourceJob(Members& members, cgroups::Group group)
    : root_(members.front().process),
      gpu_members_(gpu_members_of(members)),
      gates_(gates_of(gpu_members_, /*driver_alone=*/true)),
      throttled_(gates_of(gpu_members_, /*driver_alone=*/false)),
      group_(std::move(group)) {}

pid_t SourceJob::driver_alone() const {
  const auto found = std::ranges::find_if(
      gpu_members_, [](const Member* member) { return member->access->is_driver_alone(); });
  return found == gpu_members_.end() ? 0 : (*found)->pid();
}

Status SourceJob::enter_group() {
  GCR_TRY(group_.create());
  GCR_TRY(group_.add(root_));
  // Children of processes in the group are in it, too; the next scan finds the others.
  std::set<pid_t> moved{pid()};
  for (int scan = 0; scan < kMostScans; ++scan) {
    bool found_new = false;
    for (const procfs::Process& process : procfs::open_tree(root_)) {
      if (!moved.insert(process.pid()).second || group_.contains(process)) continue;
      found_new = true;
      const Status added = group_.add(process);
      if (!added && added.error().code() != Code::kNotFound) return added;
    }
    if (!found_new) return {};
  }
  return Error(Code::kTimeout,
               "the job starts processes faster than they can be moved into one control group");
}

Status SourceJob::close_gate(std::chrono::milliseconds timeout, gpu::Gates::Watch watch) {
  gated_ = true;
  detaching_ = driver_alone() != 0;
  gates_.set_watch(std::move(watch));
  const Status closed = gates_.quiesce(timeout, kGateLease);
  gates_.set_watch({});
  return closed;
}

Status SourceJob::open_gate() {
  GCR_TRY(gates_.resume());
  gated_ = false;
  detaching_ = false;
  return {};
}

Status SourceJob::detach() {
  detaching_ = true;
  return side_by_side(gpu_members_, [](Member* member) { return member->access->detach(); });
}

Status SourceJob::lock(std::chrono::milliseconds timeout) {
  return side_by_side(gpu_members_, [timeout](Member* member) {
    return member->access->is_driver_alone() ? Status() : member->control->lock(timeout);
  });
}

Status SourceJob::checkpoint() {
  return side_by_side(gpu_members_, [](Member* member) -> Status {
    const Status done = member->control->checkpoint();
    if (done || done.error().code() != Code::kUnsupported) return done;
    if (!member->access->is_driver_alone()) return done;
    return Error(Code::kRefused, done.error().message() +
                                     ": the process may use managed memory, which cannot be moved");
  });
}

/// Freezes the group at a moment at which no thread is in vfork. The next step stops all threads
/// and waits for each of them. It would wait for ever for a thread that waits in vfork for a child
/// that was stopped before it executed its program. The state of a thread does not show this,
/// because the kernel treats a thread as frozen a moment before it sleeps in vfork; but a child in
/// vfork shares its parent's memory. If there is one, the group is thawed and frozen again.
Status SourceJob::freeze_outside_vfork() {
  const auto end = std::chrono::steady_clock::now() + kVforkPatience;
  for (;;) {
    GCR_TRY(group_.freeze());
    const std::vector<pid_t> tree = procfs::stopped_tree(pid());
    const auto in_vfork = std::ranges::find_if(tree, procfs::is_in_vfork);
    if (in_vfork == tree.end()) return {};
    const std::string child = process::describe_process(*in_vfork);
    GCR_TRY(group_.thaw());
    if (std::chrono::steady_clock::now() > end) {
      return Error(
          Code::kUnavailable,
          fmt::format(
              "cannot freeze the job: for {} s there was always a process in vfork, now process {}",
              kVforkPatience.count(), child));
    }
    std::this_thread::sleep_for(kVforkPause);
  }
}

/// Thaws the group with all tasks stopped: they handle SIGSTOP before they run.
Status SourceJob::thaw_stopped() {
  std::vector<procfs::Process> members;
  for (const pid_t pid : group_.processes()) {
    auto process = procfs::Process::open(pid);
    if (!process || !group_.contains(*process)) continue;
    const Status sent = process->send(SIGSTOP);
    if (sent) members.push_back(std::move(*process));
  }
  GCR_TRY(group_.thaw());
  for (const procfs::Process& process : members) {
    const Status stopped = procfs::wait_until_stopped(process.pid());
    if (!stopped && !process.is_ending()) return stopped;
  }
  return {};
}

Status SourceJob::stop() {
  GCR_TRY(freeze_outside_vfork());
  dumped_ = true;
  GCR_TRY(thaw_stopped());
  return group_.freeze();
}

Status SourceJob::check_in_time(bool by_criu, const LastCheck& last) {
  for (;;) {
    const Status checked = last.check();
    if (checked || dumped_) return checked;
    if (by_criu) GCR_TRY(group_.thaw());
    if (!last.once_more(checked.error())) return checked;
    if (by_criu) GCR_TRY(freeze_outside_vfork());
  }
}

Result<std::vector<process::ThreadRights>> SourceJob::dump(const LastCheck& last,
                                                           criu::PreparedDump& prepared,
                                                           const criu::TakeImage& take,
                                                           const memory_files::Renamed& renamed,
                                                           criu::SeparateMemory& memory) {
  const bool by_criu = !group_.directory_for_criu().empty();
  if (by_criu) {
    GCR_TRY(freeze_outside_vfork());
  } else if (dumped_) {
    GCR_TRY(thaw_stopped());  // CRIU cannot trace frozen threads
  }
  auto dumped = [&]() -> Result<std::vector<process::ThreadRights>> {
    GCR_TRY(check_in_time(by_criu, last));
    return prepared.run(take, renamed, &memory);
  }();
  if (!dumped) {
    if (by_criu && !dumped_) GCR_TRY(group_.thaw());
    return dumped;
  }
  dumped_ = true;
  GCR_TRY(group_.freeze());
  return dumped;
}

}  // namespace gcr::migration

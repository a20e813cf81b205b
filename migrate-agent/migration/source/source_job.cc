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

/// If the agent is gone, a closed gate opens by itself after this, unless VRAM was detached.
constexpr std::chrono::seconds kGateLease{30};
/// Each finds only what processes have started that the look before it had not yet moved.
constexpr int kMostLooks = 100;
/// A child is in vfork for less than a millisecond, but a program may start one after the other.
constexpr std::chrono::seconds kVforkPatience{5};
constexpr std::chrono::microseconds kVforkPause{200};

std::vector<gpu::Gates::Member> gates_of(const std::vector<Member*>& members) {
  std::vector<gpu::Gates::Member> gates;
  for (const Member* one : members) gates.push_back({one->pid(), one->access.get()});
  return gates;
}

std::vector<gpu::Gates::Member> under_library(std::vector<gpu::Gates::Member> members) {
  std::erase_if(members,
                [](const gpu::Gates::Member& one) { return one.access->is_driver_alone(); });
  return members;
}

}  // namespace

SourceJob::SourceJob(Members& members, cgroups::Group group)
    : root_(members.front().process),
      gpu_members_(gpu_members_of(members)),
      gates_(gates_of(gpu_members_)),
      throttled_(under_library(gates_of(gpu_members_))),
      group_(std::move(group)) {}

pid_t SourceJob::driver_alone() const {
  const auto found = std::ranges::find_if(
      gpu_members_, [](const Member* one) { return one->access->is_driver_alone(); });
  return found == gpu_members_.end() ? 0 : (*found)->pid();
}

Status SourceJob::enter_group() {
  GCR_TRY(group_.create());
  GCR_TRY(group_.add(root_));
  // What is born in the group stays in it; what was born outside meanwhile, the next look finds.
  std::set<pid_t> moved{pid()};
  for (int look = 0; look < kMostLooks; ++look) {
    bool found_new = false;
    for (const procfs::Process& process : procfs::open_tree(root_)) {
      if (!moved.insert(process.pid()).second || group_.contains(process)) continue;
      found_new = true;
      const Status added = group_.add(process);
      if (!added && added.error().code() != Code::kNotFound) return added;
    }
    if (!found_new) return {};
  }
  return Error(Code::kTimeout, "its processes start others faster than they can be held together");
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
  return side_by_side(gpu_members_, [](Member* one) { return one->access->detach(); });
}

Status SourceJob::lock(std::chrono::milliseconds timeout) {
  return side_by_side(gpu_members_, [timeout](Member* one) {
    return one->access->is_driver_alone() ? Status() : one->control->lock(timeout);
  });
}

Status SourceJob::checkpoint() {
  return side_by_side(gpu_members_, [](Member* one) -> Status {
    const Status done = one->control->checkpoint();
    if (done || done.error().code() != Code::kUnsupported) return done;
    if (!one->access->is_driver_alone()) return done;
    return Error(Code::kRefused, done.error().message() + ": does it use managed memory?");
  });
}

/// All threads of a frozen group are stopped next, by CRIU or by stop(), which waits until each
/// has: for ever, if one waits in vfork for a child that has stopped before it executed its
/// program. So none may when the group freezes. The kernel takes a thread for frozen a moment
/// before it sleeps in vfork, so its state does not tell; that its child has its memory does.
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
      return Error(Code::kUnavailable,
                   fmt::format("process {} is in vfork: it has its parent's memory still", child));
    }
    std::this_thread::sleep_for(kVforkPause);
  }
}

/// A frozen task takes its SIGSTOP when it is thawed, before it runs.
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

Status SourceJob::look_in_time(bool by_criu, const LastLook& last) {
  for (;;) {
    const Status looked = last.look();
    if (looked || dumped_) return looked;
    if (by_criu) GCR_TRY(group_.thaw());
    if (!last.once_more(looked.error())) return looked;
    if (by_criu) GCR_TRY(freeze_outside_vfork());
  }
}

Result<std::vector<process::ThreadRights>> SourceJob::dump(const LastLook& last,
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
    GCR_TRY(look_in_time(by_criu, last));
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

// The members at the source.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "migrate-agent/criu/launch/helpers.h"
#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/criu/runs/paused_queues.h"
#include "migrate-agent/criu/sockets/tcp_sockets.h"
#include "migrate-agent/gpu/access/door/door.h"
#include "migrate-agent/gpu/access/driver/driver_access.h"
#include "migrate-agent/gpu/device/drivers/drivers.h"
#include "migrate-agent/gpu/keeper/keeper.h"
#include "migrate-agent/gpu/mover/give.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/linux/ptrace/held_threads.h"
#include "migrate-agent/migration/undo/recovery.h"
#include "migrate-agent/process/inspect/sharing.h"
#include "src/base/log.h"
#include "src/base/side_by_side.h"

namespace gcr::undo {
namespace {

using gpu::GpuAccess;

/// How long to wait for a CRIU that works on the process; the caller tries again.
constexpr std::chrono::seconds kCriuPatience{60};
/// What the preload library calls the thread that serves the door.
constexpr char kDoorThread[] = "gcr-door";

bool is_stopped(pid_t pid) {
  const std::vector<pid_t> tids = procfs::threads(pid);
  return std::any_of(tids.begin(), tids.end(), [pid](pid_t tid) {
    return procfs::state(fmt::format("{}/task/{}", pid, tid)) == 'T';
  });
}

/// The id of the door's thread in the process's own PID namespace; 0 if it has ended.
pid_t door_thread(pid_t pid) {
  for (const pid_t tid : procfs::threads(pid)) {
    const std::string task = fmt::format("{}/task/{}", pid, tid);
    const std::vector<pid_t> pids = procfs::namespace_pids(task);
    if (!pids.empty() && procfs::status_field(task, "Name") == kDoorThread) return pids.back();
  }
  return 0;
}

/// The dump has stopped it, or a worker died while it dropped pages of zeros: then the door first
/// finishes dropping, and nothing may write to the memory before it has answered.
Status resume(const procfs::Process& process, GpuAccess& access) {
  spdlog::info("process {} is stopped: continuing", process.pid());
  if (access.is_driver_alone()) return criu::resume_stopped(process);
  tracing::HeldThreads threads(process);
  GCR_TRY(threads.hold_all_but(door_thread(process.pid())));
  GCR_TRY(access.look());
  threads.release();
  return criu::resume_stopped(process);
}

struct Member {
  gpu::MemberId id;
  procfs::Process process;
  std::unique_ptr<GpuAccess> found = {};  ///< unless the caller has it in hand
  GpuAccess* access = nullptr;            ///< null if the member was not taken apart
  bool gated = false;
};

std::vector<pid_t> pids_of(std::span<const Member> members) {
  std::vector<pid_t> pids;
  for (const Member& member : members) pids.push_back(member.process.pid());
  return pids;
}

/// Makes them stopped instead of frozen.
Status thaw_stopped(std::span<const Member> members, const cgroups::Group& group) {
  GCR_ASSIGN(const bool frozen, group.is_frozen());
  if (!frozen) return {};
  for (const Member& member : members) GCR_TRY(member.process.send(SIGSTOP));
  GCR_TRY(group.thaw());
  for (const Member& member : members) {
    GCR_TRY(procfs::wait_until_stopped(member.process.pid()));
  }
  return {};
}

/// Whether that is why the driver does not tell: then there is nothing to undo.
template <class T>
bool has_no_cuda(const Result<T>& asked) {
  return !asked && asked.error().code() == Code::kNotFound;
}

/// Restores and unlocks the control state, from whatever state the driver reports.
Status bring_back_control(pid_t pid, const std::vector<device::GpuPair>& gpus,
                          const device::Driver& driver) {
  const auto control = driver.control(pid);
  for (;;) {
    const auto state = control->state();
    if (has_no_cuda(state)) return {};
    GCR_TRY(state);
    switch (*state) {
      case device::Control::State::kRunning:
        return {};
      case device::Control::State::kCheckpointed:
        spdlog::info("process {} is checkpointed: restoring", pid);
        GCR_TRY(control->restore(gpus));
        break;
      case device::Control::State::kLocked:
        spdlog::info("process {} is locked: unlocking", pid);
        GCR_TRY(control->unlock());
        break;
      default:
        return Error(Code::kDataLoss,
                     fmt::format("the driver has given up on CUDA in process {}", pid));
    }
  }
}

Status bring_back_controls(std::span<Member*> members, const Lost& lost, const InHand* in_hand) {
  if (members.empty()) return {};
  auto driver = in_hand == nullptr ? nullptr : in_hand->driver;
  if (driver == nullptr) {
    GCR_ASSIGN(driver, device::load_drivers(lost.sysfs));
  }
  return side_by_side(members, [&](const Member* member) {
    return bring_back_control(member->process.pid(), lost.gpus, *driver);
  });
}

Result<gpu::MemberDescriptors> find_vram(const Lost& lost, const InHand* in_hand) {
  if (in_hand != nullptr) return in_hand->vram();
  Result<gpu::MemberDescriptors> taken = Error(Code::kNotFound, "no keeper was started");
  if (lost.keeper) taken = keeper::take_from(*lost.keeper);
  if (taken || taken.error().code() != Code::kNotFound) return taken;
  return Error(Code::kDataLoss, fmt::format("the VRAM of process {} is lost: {}",
                                            lost.members.front().pid(), taken.error().message()));
}

/// kNotFound: the process was refused in preflight, or has executed another program, or has ended.
/// It was never taken apart. The process may be stopped: the driver is not asked about it yet.
Result<std::unique_ptr<GpuAccess>> find_access(pid_t pid, const Lost& lost) {
  if (pid != lost.driver_alone) {
    auto access = gpu::open_access(pid);
    if (access || access.error().code() != Code::kNotFound || lost.driver_alone >= 0) return access;
  }
  if (!procfs::has_library(pid, "libcuda.so") || process::is_under_preload(pid)) {
    return Error(Code::kNotFound, fmt::format("process {} does not use CUDA any more", pid));
  }
  GCR_ASSIGN(const auto driver, device::load_drivers(lost.sysfs));
  return std::make_unique<gpu::DriverAccess>(pid, *driver);
}

/// Finds the access to those that may have been taken apart.
Status open_accesses(std::span<Member> members, const Lost& lost, const InHand* in_hand) {
  for (Member& member : members) {
    const pid_t pid = member.process.pid();
    if (in_hand != nullptr) {
      const auto access = in_hand->accesses.find(pid);
      if (in_hand->gated && access != in_hand->accesses.end()) member.access = access->second;
    } else {
      auto access = find_access(pid, lost);
      if (!access && access.error().code() == Code::kNotFound) continue;
      GCR_TRY(access);
      // It was found by PID: it is this process's if the process has not been reaped.
      if (member.process.has_ended()) continue;
      member.found = std::move(*access);
      member.access = member.found.get();
    }
    if (member.access == nullptr || lost.detaching || !is_stopped(pid)) continue;
    spdlog::info("process {} was stopped by its user; its gate opens by itself", pid);
    member.access = nullptr;
  }
  return {};
}

/// Attaches the VRAM of all that are detached.
Status bring_back_vram(std::span<Member*> members, const Lost& lost, const InHand* in_hand) {
  std::optional<gpu::MemberDescriptors> vram;
  std::shared_ptr<const device::Driver> driver = in_hand != nullptr ? in_hand->driver : nullptr;
  for (Member* member : members) {
    const auto state = member->access->look();
    if (member->access->is_driver_alone() && has_no_cuda(state)) continue;
    GCR_TRY(state);
    member->gated = state->quiet;
    if (!state->detached) continue;
    if (!vram) {
      GCR_ASSIGN(vram, find_vram(lost, in_hand));
      if (driver == nullptr) {
        GCR_ASSIGN(driver, device::load_drivers(lost.sysfs));
      }
    }
    gpu::LocalDescriptors& descriptors = (*vram)[member->id];
    spdlog::info("process {} is detached: attaching {} buffers", member->process.pid(),
                 descriptors.size());
    GCR_TRY(mover::give(*member->access, std::move(descriptors), driver, [] {}));
  }
  return {};
}

/// Those without a GPU were only stopped.
Status continue_others(std::span<const Member> members) {
  for (const Member& member : members) {
    if (member.access != nullptr || !is_stopped(member.process.pid())) continue;
    const Status continued = member.process.send(SIGCONT);
    if (!continued && continued.error().code() != Code::kNotFound) return continued;
  }
  return {};
}

/// Tells the caller of bring_back() how long `work` took.
Status timed(const InHand* in_hand, const char* step, const std::function<Status()>& work) {
  const auto began = std::chrono::steady_clock::now();
  const Status done = work();
  if (in_hand != nullptr && in_hand->took) in_hand->took(step, began);
  return done;
}

/// As if nobody had stopped them.
Status let_go_on(std::span<Member*> members) {
  for (Member* member : members) {
    // A CRIU that failed has let the process go on, but perhaps not its queues.
    GCR_TRY(is_stopped(member->process.pid()) ? resume(member->process, *member->access)
                                              : criu::let_queues_go_on(member->process));
  }
  return {};
}

/// Each step for all members before the next.
Status bring_back_all(const Lost& lost, std::span<Member> members, const InHand* in_hand) {
  GCR_TRY(criu::wait_for_helpers(lost.scratch, kCriuPatience));
  // Frozen processes are stopped again for what follows: a SIGCONT may have ended their stop.
  GCR_TRY(thaw_stopped(members, lost.group));
  if (lost.detaching) GCR_TRY(criu::end_repair(pids_of(members), criu::Repaired::kAll));
  GCR_TRY(open_accesses(members, lost, in_hand));
  std::vector<Member*> taken_apart;
  for (Member& member : members) {
    if (member.access != nullptr) taken_apart.push_back(&member);
  }
  if (lost.detaching) {
    GCR_TRY(timed(in_hand, "continue", [&] { return let_go_on(taken_apart); }));
    GCR_TRY(timed(in_hand, "control restore",
                  [&] { return bring_back_controls(taken_apart, lost, in_hand); }));
  }
  GCR_TRY(
      timed(in_hand, "attach VRAM", [&] { return bring_back_vram(taken_apart, lost, in_hand); }));
  for (Member* member : taken_apart) {
    if (!member->gated) continue;
    spdlog::info("process {} is behind its gate: opening it", member->process.pid());
    GCR_TRY(member->access->resume());
  }
  return lost.detaching ? continue_others(members) : Status();
}

/// Those that have not been reaped, and what was born below them since.
Result<std::vector<Member>> open_members(const std::vector<journal::ProcessId>& ids,
                                         const cgroups::Group& group) {
  std::vector<Member> members;
  for (std::uint32_t i = 0; i < ids.size(); ++i) {
    auto process = procfs::Process::open(ids[i].pid(), ids[i].start_time());
    if (!process && process.error().code() == Code::kNotFound) continue;
    GCR_TRY(process);
    members.push_back({{i}, std::move(*process)});
  }
  std::vector<procfs::Process> born;
  for (const Member& member : members) {
    for (procfs::Process& process : procfs::open_tree(member.process)) {
      born.push_back(std::move(process));
    }
  }
  for (const pid_t pid : group.processes()) {
    auto process = procfs::Process::open(pid);
    if (process && group.contains(*process)) born.push_back(std::move(*process));
  }
  for (procfs::Process& process : born) {
    const auto is_it = [&process](const Member& m) { return m.process.pid() == process.pid(); };
    if (std::ranges::any_of(members, is_it)) continue;
    members.push_back({{static_cast<std::uint32_t>(ids.size())}, std::move(process)});
  }
  return members;
}

/// A process that was born since goes where the first member goes.
cgroups::Group::Homes homes_of(const Lost& lost) {
  return [&lost](pid_t pid) -> std::string {
    if (lost.homes.empty()) return "";
    const auto member = std::ranges::find(lost.members, pid, &journal::ProcessId::pid);
    const auto at = static_cast<std::size_t>(member - lost.members.begin());
    return at < lost.homes.size() ? lost.homes[at] : lost.homes.front();
  };
}

bool any_ends_within(std::span<const Member> members, std::chrono::milliseconds patience) {
  std::vector<pollfd> ends;
  for (const Member& member : members) ends.push_back({member.process.pidfd(), POLLIN, 0});
  return procfs::any_ends_within(ends, patience);
}

}  // namespace

Result<Found> bring_back(const Lost& lost, const InHand* in_hand) {
  GCR_ASSIGN(std::vector<Member> members, open_members(lost.members, lost.group));
  const auto ended = [](const Member& member) { return member.process.has_ended(); };
  Status status;
  for (bool again = true; again;) {
    std::erase_if(members, ended);
    status = bring_back_all(lost, members, in_hand);
    // Helpers go on without a process that is gone, for a moment.
    again = !status && any_ends_within(members, GpuAccess::kEndPatience);
    if (again && std::ranges::all_of(members, ended)) {
      status = {};
      again = false;
    }
  }
  if (status && in_hand != nullptr && in_hand->running) in_hand->running();
  if (status) status = lost.group.dissolve(homes_of(lost));
  if (status && std::ranges::all_of(members, ended)) return Found::kGone;
  if (status) return Found::kRunning;
  return status.error().while_doing(
      fmt::format("cannot bring process {} back", lost.members.front().pid()));
}

Status stand_still(const Lost& lost) {
  GCR_TRY(criu::wait_for_helpers(lost.scratch, kCriuPatience));
  GCR_ASSIGN(const std::vector<Member> members, open_members(lost.members, lost.group));
  if (!members.empty()) GCR_TRY(lost.group.freeze());
  return criu::end_repair(pids_of(members), criu::Repaired::kAll);
}

/// Nobody is thawed before all are killed. Connections to others end as if the processes had closed
/// them; those among themselves, which go on elsewhere, end without a word.
Status end_stopped(const std::vector<journal::ProcessId>& members, const cgroups::Group& group) {
  GCR_ASSIGN(const std::vector<Member> found, open_members(members, group));
  const Status told = criu::end_repair(pids_of(found), criu::Repaired::kOutside);
  if (!told) spdlog::warn("others will find out later: {}", told.error().message());
  for (const Member& member : found) {
    const Status sent = member.process.send(SIGKILL);
    if (!sent && sent.error().code() != Code::kNotFound) return sent;
  }
  GCR_TRY(group.thaw());
  for (const Member& member : found) GCR_TRY(member.process.wait_until_ended());
  return group.dissolve();
}

}  // namespace gcr::undo

// Resumes the members of a job at the source, or keeps them frozen, or kills them.
//
// bring_back() does not know how far the worker came. It opens every member and every descendant
// that still exists, then takes each step for all members before the next one: wait for CRIU, thaw,
// continue, restore and unlock CUDA, attach VRAM, open the gates. Each step asks for the current
// state first (the state of the tasks, the driver's state of the process, the preload library's
// answer) and does nothing where nothing is to be undone, so the sequence can be repeated from the
// beginning. If a member ends meanwhile, its step fails; bring_back() then removes ended members
// from the list and repeats the sequence for the others.
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
#include "migrate-agent/linux/ptrace/tracing.h"
#include "migrate-agent/migration/undo/recovery.h"
#include "migrate-agent/process/inspect/sharing.h"
#include "src/base/log.h"
#include "src/base/side_by_side.h"

namespace gcr::undo {
namespace {

using gpu::GpuAccess;

/// The longest wait for a CRIU that works on the members; after it the caller tries again.
constexpr std::chrono::seconds kCriuPatience{60};
/// The name that the preload library gives to the thread that serves the door.
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

/// Continues a process that was stopped by a dump, or by a worker that died while it dropped zero
/// pages. In the second case the door first finishes dropping them: until it has answered, all
/// other threads are held, so that nothing writes to the memory.
Status resume(const procfs::Process& process, GpuAccess& access) {
  spdlog::info("continuing the stopped process {}", process.pid());
  if (access.is_driver_alone()) return criu::resume_stopped(process);
  tracing::HeldThreads threads(process);
  GCR_TRY(threads.hold_all_but(door_thread(process.pid())));
  GCR_TRY(access.read_state());
  threads.release();
  return criu::resume_stopped(process);
}

struct Member {
  gpu::MemberId id;
  procfs::Process process;
  std::unique_ptr<GpuAccess> found = {};  ///< owns `access`, unless the caller passed it
  GpuAccess* access = nullptr;            ///< null: nothing of its GPU state is to be undone
  bool gated = false;
};

std::vector<pid_t> pids_of(std::span<const Member> members) {
  std::vector<pid_t> pids;
  for (const Member& member : members) pids.push_back(member.process.pid());
  return pids;
}

/// Thaws the group so that the members are stopped by SIGSTOP and no longer frozen.
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

/// Whether the driver reported that the process does not use CUDA; then there is nothing to undo.
template <class T>
bool has_no_cuda(const Result<T>& asked) {
  return !asked && asked.error().code() == Code::kNotFound;
}

/// Restores and unlocks the CUDA state of the process, from any state that the driver reports.
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
        spdlog::info("restoring the CUDA state of the checkpointed process {}", pid);
        GCR_TRY(control->restore(gpus));
        break;
      case device::Control::State::kLocked:
        spdlog::info("unlocking CUDA in process {}", pid);
        GCR_TRY(control->unlock());
        break;
      default:
        return Error(
            Code::kDataLoss,
            fmt::format(
                "the driver reports that CUDA in process {} has failed: its GPU state is lost",
                pid));
    }
  }
}

Status bring_back_controls(std::span<Member*> members, const Lost& lost,
                           const WorkerState* worker_state) {
  if (members.empty()) return {};
  auto driver = worker_state == nullptr ? nullptr : worker_state->driver;
  if (driver == nullptr) {
    GCR_ASSIGN(driver, device::load_drivers(lost.sysfs));
  }
  return side_by_side(members, [&](const Member* member) {
    return bring_back_control(member->process.pid(), lost.gpus, *driver);
  });
}

Result<gpu::MemberDescriptors> find_vram(const Lost& lost, const WorkerState* worker_state) {
  if (worker_state != nullptr) return worker_state->vram();
  Result<gpu::MemberDescriptors> taken = Error(Code::kNotFound, "no keeper was started");
  if (lost.keeper) taken = keeper::take_from(*lost.keeper);
  if (taken || taken.error().code() != Code::kNotFound) return taken;
  return Error(Code::kDataLoss,
               fmt::format("the VRAM of process {} is lost, because no keeper holds it: {}",
                           lost.members.front().pid(), taken.error().message()));
}

/// The door of a process, or the driver. kNotFound: nothing is to be undone, since the process was
/// refused in preflight, has executed another program, or has ended. The driver is not asked about
/// the process, which may be stopped.
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

/// Sets `access` of all members whose GPU state may have to be undone.
Status open_accesses(std::span<Member> members, const Lost& lost, const WorkerState* worker_state) {
  for (Member& member : members) {
    const pid_t pid = member.process.pid();
    if (worker_state != nullptr) {
      const auto access = worker_state->accesses.find(pid);
      if (worker_state->gated && access != worker_state->accesses.end())
        member.access = access->second;
    } else {
      auto access = find_access(pid, lost);
      if (!access && access.error().code() == Code::kNotFound) continue;
      GCR_TRY(access);
      // The access was found by PID. It is this process's, unless the process was reaped.
      if (member.process.has_ended()) continue;
      member.found = std::move(*access);
      member.access = member.found.get();
    }
    if (member.access == nullptr || lost.detaching || !is_stopped(pid)) continue;
    spdlog::info(
        "leaving process {} stopped, because its user stopped it; its gate opens when its "
        "lease expires",
        pid);
    member.access = nullptr;
  }
  return {};
}

/// Attaches the VRAM of all detached members, and notes whose gates are closed.
Status bring_back_vram(std::span<Member*> members, const Lost& lost,
                       const WorkerState* worker_state) {
  std::optional<gpu::MemberDescriptors> vram;
  std::shared_ptr<const device::Driver> driver =
      worker_state != nullptr ? worker_state->driver : nullptr;
  for (Member* member : members) {
    const auto state = member->access->read_state();
    if (member->access->is_driver_alone() && has_no_cuda(state)) continue;
    GCR_TRY(state);
    member->gated = state->quiet;
    if (!state->detached) continue;
    if (!vram) {
      GCR_ASSIGN(vram, find_vram(lost, worker_state));
      if (driver == nullptr) {
        GCR_ASSIGN(driver, device::load_drivers(lost.sysfs));
      }
    }
    gpu::LocalDescriptors& descriptors = (*vram)[member->id];
    spdlog::info("attaching {1} buffers to the detached process {0}", member->process.pid(),
                 descriptors.size());
    GCR_TRY(mover::give(*member->access, std::move(descriptors), driver, [] {}));
  }
  return {};
}

/// Continues the members without GPU state, which were only stopped.
Status continue_others(std::span<const Member> members) {
  for (const Member& member : members) {
    if (member.access != nullptr || !is_stopped(member.process.pid())) continue;
    const Status continued = member.process.send(SIGCONT);
    if (!continued && continued.error().code() != Code::kNotFound) return continued;
  }
  return {};
}

/// Runs `work`, and reports its duration to the caller of bring_back().
Status timed(const WorkerState* worker_state, const char* step,
             const std::function<Status()>& work) {
  const auto began = std::chrono::steady_clock::now();
  const Status done = work();
  if (worker_state != nullptr && worker_state->took) worker_state->took(step, began);
  return done;
}

/// Continues the members with GPU state.
Status continue_gpu_users(std::span<Member*> members) {
  for (Member* member : members) {
    // A failed CRIU continues the process, but may leave its AMD queues paused.
    GCR_TRY(is_stopped(member->process.pid()) ? resume(member->process, *member->access)
                                              : criu::let_queues_go_on(member->process));
  }
  return {};
}

/// The sequence described at the top of this file.
Status bring_back_all(const Lost& lost, std::span<Member> members,
                      const WorkerState* worker_state) {
  GCR_TRY(criu::wait_for_helpers(lost.scratch, kCriuPatience));
  // Frozen processes are stopped for the next steps: a SIGCONT may have ended their stop.
  GCR_TRY(thaw_stopped(members, lost.group));
  if (lost.detaching) {
    if (lost.reenter_network) lost.reenter_network();
    GCR_TRY(criu::end_repair(pids_of(members), criu::Repaired::kAll));
  }
  GCR_TRY(open_accesses(members, lost, worker_state));
  std::vector<Member*> taken_apart;
  for (Member& member : members) {
    if (member.access != nullptr) taken_apart.push_back(&member);
  }
  if (lost.detaching) {
    GCR_TRY(timed(worker_state, "continue", [&] { return continue_gpu_users(taken_apart); }));
    GCR_TRY(timed(worker_state, "control restore",
                  [&] { return bring_back_controls(taken_apart, lost, worker_state); }));
  }
  GCR_TRY(timed(worker_state, "attach VRAM",
                [&] { return bring_back_vram(taken_apart, lost, worker_state); }));
  for (Member* member : taken_apart) {
    if (!member->gated) continue;
    spdlog::info("opening the gate of process {}", member->process.pid());
    GCR_TRY(member->access->resume());
  }
  return lost.detaching ? continue_others(members) : Status();
}

/// Opens all members not reaped, and processes started since: descendants, and those in `group`.
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

/// The group to which each process returns: that of the first member if it is no member.
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

Result<Found> bring_back(const Lost& lost, const WorkerState* worker_state) {
  GCR_ASSIGN(std::vector<Member> members, open_members(lost.members, lost.group));
  const auto ended = [](const Member& member) { return member.process.has_ended(); };
  Status status;
  for (bool again = true; again;) {
    std::erase_if(members, ended);
    status = bring_back_all(lost, members, worker_state);
    // A step may also fail because a member is ending and its helpers have noticed first.
    again = !status && any_ends_within(members, GpuAccess::kEndPatience);
    if (again && std::ranges::all_of(members, ended)) {
      status = {};
      again = false;
    }
  }
  if (status && worker_state != nullptr && worker_state->running) worker_state->running();
  if (status) status = lost.group.dissolve(homes_of(lost));
  if (status && std::ranges::all_of(members, ended)) return Found::kGone;
  if (status) return Found::kRunning;
  return status.error().while_doing(
      fmt::format("cannot resume process {} at the source", lost.members.front().pid()));
}

Status refreeze_suspended(const Lost& lost) {
  GCR_TRY(criu::wait_for_helpers(lost.scratch, kCriuPatience));
  GCR_ASSIGN(const std::vector<Member> members, open_members(lost.members, lost.group));
  if (!members.empty()) GCR_TRY(lost.group.freeze());
  return criu::end_repair(pids_of(members), criu::Repaired::kAll);
}

/// Kills all members before it thaws any. Connections that continue at the destination end here
/// without a packet.
Status end_stopped(const std::vector<journal::ProcessId>& members, const cgroups::Group& group,
                   Peers peers) {
  GCR_ASSIGN(const std::vector<Member> found, open_members(members, group));
  const Status closed = peers == Peers::kSeeNothing
                            ? Status()
                            : criu::end_repair(pids_of(found), criu::Repaired::kOutside);
  if (!closed) {
    spdlog::warn(
        "cannot close the stopped copy's TCP connections to outside peers; they will time out "
        "instead: {}",
        closed.error().message());
  }
  for (const Member& member : found) {
    const Status sent = member.process.send(SIGKILL);
    if (!sent && sent.error().code() != Code::kNotFound) return sent;
  }
  GCR_TRY(group.thaw());
  for (const Member& member : found) GCR_TRY(member.process.wait_until_ended());
  return group.dissolve();
}

}  // namespace gcr::undo

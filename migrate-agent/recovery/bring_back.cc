// The process at the source.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "migrate-agent/criu/criu.h"
#include "migrate-agent/criu/held_threads.h"
#include "migrate-agent/criu/helpers.h"
#include "migrate-agent/device/cuda/driver.h"
#include "migrate-agent/door/door.h"
#include "migrate-agent/keeper/keeper.h"
#include "migrate-agent/procfs/procfs.h"
#include "migrate-agent/recovery/recovery.h"
#include "src/base/log.h"

namespace gcr::recovery {
namespace {

using agent::Door;

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
Status resume(const procfs::Process& process, Door& door) {
  spdlog::info("process {} is stopped: continuing", process.pid());
  criu::HeldThreads threads(process);
  GCR_TRY(threads.hold_all_but(door_thread(process.pid())));
  GCR_TRY(door.hello());
  threads.let_go();
  return criu::resume_stopped(process);
}

/// Makes it stopped instead of frozen.
Status thaw_stopped(const procfs::Process& process, const cgroups::Group& group) {
  GCR_ASSIGN(const bool frozen, group.is_frozen());
  if (!frozen) return {};
  GCR_TRY(process.send(SIGSTOP));
  GCR_TRY(group.thaw());
  return procfs::wait_until_stopped(process.pid());
}

/// Restores and unlocks the control state, from whatever state the driver reports.
Status bring_back_control(pid_t pid) {
  GCR_ASSIGN(const auto driver, device::cuda::load());
  const auto control = driver->control(pid);
  for (;;) {
    GCR_ASSIGN(const auto state, control->state());
    switch (state) {
      case device::Control::State::kRunning:
        return {};
      case device::Control::State::kCheckpointed:
        spdlog::info("process {} is checkpointed: restoring", pid);
        GCR_TRY(control->restore({}));
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

Result<keeper::Descriptors> find_vram(const Lost& lost) {
  Result<keeper::Descriptors> taken = Error(Code::kNotFound, "no keeper was started");
  if (lost.keeper) taken = keeper::take_from(*lost.keeper);
  if (taken || taken.error().code() != Code::kNotFound) return taken;
  return Error(Code::kDataLoss, fmt::format("the VRAM of process {} is lost: {}",
                                            lost.process.pid(), taken.error().message()));
}

Status bring_back_vram(Door& door, const Lost& lost) {
  GCR_ASSIGN(const door::Summary summary, door.hello());
  if (summary.detached != 0) {
    GCR_ASSIGN(keeper::Descriptors kept, find_vram(lost));
    job::LocalDescriptors& descriptors = kept[job::kRoot];
    spdlog::info("process {} is detached: attaching {} buffers", door.pid(), descriptors.size());
    GCR_TRY(door.offer(std::move(descriptors)));
    GCR_TRY(door.attach());
  }
  if (summary.gate_closed == 0) return {};
  spdlog::info("process {} is behind its gate: opening it", door.pid());
  return door.open_gate();
}

Status bring_back_all(const Lost& lost, const procfs::Process& process) {
  const pid_t pid = process.pid();
  GCR_TRY(criu::wait_for_helpers(lost.scratch, kCriuPatience));
  // A frozen process is stopped again for what follows: a SIGCONT may have ended its stop.
  GCR_TRY(thaw_stopped(process, lost.group));
  auto door = Door::open(pid);
  // Refused in preflight, or the process has executed another program: it was never taken apart.
  if (!door && door.error().code() == Code::kNotFound) return {};
  GCR_TRY(door);
  // The door was found by PID: it is this process's door if the process has not been reaped.
  if (process.has_ended()) return {};
  if (lost.detaching) {
    if (is_stopped(pid)) GCR_TRY(resume(process, *door));
    GCR_TRY(bring_back_control(pid));
  } else if (is_stopped(pid)) {
    spdlog::info("process {} was stopped by its user; its gate opens by itself", pid);
    return {};
  }
  return bring_back_vram(*door, lost);
}

}  // namespace

Result<Found> bring_back(const Lost& lost) {
  const auto process = procfs::Process::open(lost.process.pid(), lost.process.start_time());
  if (!process && process.error().code() == Code::kNotFound) {
    // Its helpers go on without it, for a moment.
    GCR_TRY(criu::wait_for_helpers(lost.scratch, kCriuPatience));
    GCR_TRY(lost.group.dissolve(lost.home));
    return Found::kGone;
  }
  GCR_TRY(process);
  Status status = process->has_ended() ? Status() : bring_back_all(lost, *process);
  if (status || process->has_ended()) status = lost.group.dissolve(lost.home);
  if (process->has_ended() && status) return Found::kGone;
  if (status) return Found::kRunning;
  return status.error().while_doing(
      fmt::format("cannot bring process {} back", lost.process.pid()));
}

Status end_stopped(const journal::ProcessId& process, const cgroups::Group& group) {
  const auto found = procfs::Process::open(process.pid(), process.start_time());
  if (found) {
    GCR_TRY(criu::kill_stopped(*found, [&] { return group.thaw(); }));
  } else if (found.error().code() != Code::kNotFound) {
    return found.error();
  }
  return group.dissolve();
}

}  // namespace gcr::recovery

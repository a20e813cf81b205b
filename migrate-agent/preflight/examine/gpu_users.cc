// The part of the examination that looks at the members that use GPUs, and at their VRAM.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <tuple>

#include "migrate-agent/gpu/access/door/door.h"
#include "migrate-agent/gpu/access/driver/driver_access.h"
#include "migrate-agent/gpu/device/device.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/preflight/examine/steps.h"
#include "migrate-agent/preflight/inventory/vram.h"
#include "migrate-agent/process/inspect/descriptors.h"
#include "migrate-agent/process/inspect/inspect.h"
#include "migrate-agent/process/inspect/sharing.h"
#include "migrate-agent/transfer/negotiation/negotiation.h"
#include "src/base/units.h"

namespace gcr::preflight {
namespace {

/// Checks the control state of a member, and finds the thread that restores it.
void examine_control(Member& user, Examination& found) {
  const auto control = found.host.driver->control(user.pid);
  const auto state = control->state();
  if (!state) {
    found.findings.add(findings::kCudaState, state.error().message());
    return;
  }
  if (*state != device::Control::State::kRunning) {
    found.findings.add(findings::kCudaState,
                       "CUDA in the process is locked, checkpointed or broken");
    return;
  }
  const auto thread = control->restore_thread();
  if (thread && *thread == 0) return;
  if (thread) {
    user.facts.set_cuda_restore_tid(in_own_namespace(user.pid, *thread));
  } else {
    found.findings.add(findings::kCudaState, thread.error().message());
  }
}

void examine_gpus(Examination& found) {
  std::set<std::string> used;
  for (const auto& [id, allocation] : found.job.allocations()) {
    used.insert(to_bytes(allocation.gpu));
  }
  std::uint64_t vram = 0;
  if (found.driver_alone) {
    for (const auto& [gpu, bytes] : found.driver_alone->vram) used.insert(to_bytes(gpu));
    vram = found.driver_alone->vram_bytes();
  }
  for (const proto::Gpu& gpu : found.host.facts.gpus()) {
    if (used.contains(gpu.uuid())) check_gpu(gpu, found.host.facts, found.findings);
  }
  const std::uint64_t needed = vram + used.size() * kContextReserveBytes;
  const std::uint64_t available = found.host.facts.memory_available_bytes();
  if (available >= needed) return;
  found.findings.add(findings::kMemoryTooSmall,
                     fmt::format("{} of memory are available; the driver's checkpoint takes up to "
                                 "{} for {} GPUs",
                                 format_bytes(available), format_bytes(needed), used.size()));
}

/// A member that has files of the GPU's driver open but no door, and the reason.
struct Doorless {
  Member* member;
  Error reason;
};

/// Examines members without a door. At most one can move, through the driver alone: memory that
/// several share cannot be detected. The driver is queried about one member only: one of several
/// may be a forked child.
void examine_doorless(std::vector<Doorless> doorless, Examination& found) {
  const auto describe = [&](const Doorless& one) {
    return process::describe_process(one.member->pid);
  };
  const auto refuse = [&](const Doorless& one) {
    found.findings.add(findings::kNoDoor, fmt::format("process {} uses the GPU's driver: {}",
                                                      describe(one), one.reason.message()));
  };
  // The preload library has changed the process's memory so that the driver alone cannot restore
  // it.
  std::erase_if(doorless, [&](const Doorless& one) {
    const bool under_preload = one.member->facts.under_preload();
    if (under_preload) refuse(one);
    return under_preload;
  });
  if (doorless.size() > 1) {
    found.findings.add(findings::kUnseenMemory,
                       fmt::format("processes {} and {} use the GPU's driver, and were not started "
                                   "under `gcr-migrate run`",
                                   describe(doorless[0]), describe(doorless[1])));
  }
  if (doorless.size() != 1) return;
  const Doorless& one = doorless.front();
  const pid_t pid = one.member->pid;
  const char state = procfs::state(std::to_string(pid));
  if (state == 'T' || state == 't') {
    found.findings.add(
        findings::kCudaState,
        fmt::format("process {} is stopped, and the driver cannot query it", describe(one)));
  } else if (!found.host.driver || !found.host.driver->control(pid)->state() ||
             found.host.driver->control(pid)->goes_with_dump()) {
    refuse(one);
  } else {
    found.driver_alone.emplace().pid = pid;
    one.member->facts.set_driver_alone(true);
    one.member->access = std::make_unique<gpu::DriverAccess>(pid, *found.host.driver);
  }
}

/// Examines the member that moves through the driver alone. Its VRAM becomes ordinary memory of the
/// job for a while, on both hosts.
void examine_driver_alone(const proto::MigrateRequest& request, const worker::Config& config,
                          Examination& found) {
  DriverAlone& alone = *found.driver_alone;
  auto vram = inventory::used_vram(alone.pid, found.host.driver);
  if (!vram) {
    found.findings.add(findings::kCudaState, vram.error().message());
    return;
  }
  alone.vram = *std::move(vram);
  std::uint64_t resident = 0;
  for (Member& member : found.members) {
    resident += member.facts.resident_bytes();
    if (!member.facts.driver_alone()) continue;
    member.facts.set_image_bytes(member.facts.image_bytes() + alone.vram_bytes());
  }
  if (alone.vram.size() > 1) {
    found.findings.add(findings::kUnseenMemory,
                       fmt::format("process {} may use {} GPUs, and a multicast object on them",
                                   process::describe_process(alone.pid), alone.vram.size()));
  }
  check_unseen_memory(found.pids(), found.lister.shared(), found.findings);
  const proto::GroupLimits& limits = found.members.front().facts.limits();
  if (limits.has_memory_bytes() && limits.memory_bytes() < resident + alone.vram_bytes()) {
    found.findings.add(
        findings::kMemoryTooSmall,
        fmt::format("the job's control groups allow {} of memory; it has {}, and its VRAM takes up "
                    "to {} more while it is moved",
                    format_bytes(limits.memory_bytes()), format_bytes(resident),
                    format_bytes(alone.vram_bytes())));
  }
  alone.downtime = slow_downtime(alone.vram_bytes(), resident,
                                 transfer::data_offer(config.unencrypted_data).link_bytes_per_s());
  check_slow_downtime(alone, request, found.findings);
}

/// Finds the members that use GPUs.
void find_gpu_users(Examination& found) {
  std::vector<Doorless> doorless;
  std::optional<Error> none;
  bool found_one = false;
  for (Member& member : found.members) {
    if (procfs::is_in_vfork(member.pid)) continue;  // its resources are its parent's
    auto access = gpu::open_access(member.pid);
    if (access) {
      member.access = std::move(*access);
    } else if (access.error().code() == Code::kUnavailable) {
      found.findings.add(findings::kInMigration, access.error().message());
    } else {
      if (!none) none = access.error();
      if (!process::driver_file_in_use(member.pid)) continue;
      doorless.push_back({&member, access.error()});
    }
    found_one = true;
  }
  examine_doorless(std::move(doorless), found);
  if (!found_one && none) found.findings.add(findings::kNoDoor, none->message());
}

/// Lists the VRAM of one member; false, with a finding, if that fails.
bool list_vram(gpu::MemberId id, Member& user, Examination& found,
               std::vector<gpu::Listed>& listed) {
  const auto state = user.access->read_state();
  auto listing = found.lister.list(id, *user.access, [](const auto&) { return false; });
  if (!state || !listing) {
    found.findings.add(findings::kNoDoor, (state ? listing.error() : state.error()).message());
    return false;
  }
  check_access(*state, found.findings);
  user.facts.set_door_tid(state->thread);
  listed.push_back(std::move(listing->listed));
  return true;
}

/// Returns whether the process has a descriptor of shared memory; `file` is the link target of the
/// driver's memory descriptors.
bool has_any(pid_t pid, const gpu::SameMemory& shared, const std::string& file) {
  return std::ranges::any_of(procfs::descriptor_links(pid), [&](const auto& descriptor) {
    return descriptor.link == file && shared.find(pid, descriptor.number);
  });
}

/// Returns whether the process is this one or the keeper that it started.
bool is_ours(pid_t pid) {
  return pid == ::getpid() || procfs::read_stat(pid).value_or(procfs::Stat()).parent == ::getpid();
}

/// Combines the members' VRAM into that of the job, and checks it.
void examine_allocations(const std::vector<gpu::Listed>& listed, Examination& found) {
  found.job = gpu::Job(static_cast<std::uint32_t>(found.members.size()));
  (void)found.job.follow(listed);
  check_inventory(found.job.allocations().size(), found.findings);
  if (const Status known = check_sizes(found.job); !known) {
    found.findings.add(findings::kForeignHandles, known.error().message());
  }
  for (std::string& sharer : find_sharers(found.lister.shared(), found.pids())) {
    found.findings.add(findings::kForeignHandles, std::move(sharer));
  }
}

}  // namespace

void check_access(const gpu::AccessState& state, findings::Findings& findings) {
  const std::tuple<bool, findings::Id, const char*> facts[] = {
      {state.managed_memory, findings::kManagedMemory,
       "the process uses managed memory (cudaMallocManaged, hipMallocManaged)"},
      {state.ipc_memory, findings::kIpcMemory,
       "the process shares allocations of less than 2 MiB with another one by legacy IPC"},
      {state.foreign_handles, findings::kForeignHandles,
       "GPU memory is exported in a way that cannot be undone: bound to a multicast object or a "
       "sparse array, as a dma-buf or by a fabric handle"},
      {state.lost_pools, findings::kPoolMemory,
       "a memory pool was exported or imported (cudaMemPoolExportToShareableHandle), or has memory "
       "on the host"},
      {state.profiled, findings::kProfiler, "a profiler has attached to CUDA through CUPTI"}};
  for (const auto& [is_so, id, what] : facts) {
    if (is_so) findings.add(id, what);
  }
  if (!state.past_gate.empty()) findings.add(findings::kPastGate, state.past_gate);
  if (state.untracked_bytes > 0 && !state.managed_memory) {
    findings.add(findings::kUntrackedMemory, fmt::format("{} of GPU memory are not tracked",
                                                         format_bytes(state.untracked_bytes)));
  }
  if (state.withheld > 0) {
    findings.add(findings::kWithheldFunctions,
                 fmt::format("{} lookups of driver functions that the preload library does not "
                             "know were answered with \"not found\"",
                             state.withheld));
  }
}

void check_inventory(std::size_t allocations, findings::Findings& findings) {
  if (allocations <= kMaxBuffers) return;
  findings.add(
      findings::kTooManyBuffers,
      fmt::format("it has {} allocations, at most {} are allowed", allocations, kMaxBuffers));
}

Status check_sizes(const gpu::Job& job) {
  const auto unknown = std::ranges::find_if(
      job.allocations(), [](const auto& entry) { return entry.second.size_bytes == 0; });
  if (unknown == job.allocations().end()) return {};
  return Error(Code::kRefused,
               "GPU memory of unknown size: it was imported and never mapped, and no process of "
               "the job created it");
}

std::vector<std::string> find_sharers(const gpu::SameMemory& shared,
                                      const std::vector<pid_t>& members) {
  std::vector<std::string> sharers;
  if (shared.any() < 0) return sharers;
  std::error_code error;
  const std::string file =
      std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", shared.any()), error);
  for (const pid_t pid : procfs::processes()) {
    if (std::ranges::find(members, pid) != members.end()) continue;
    if (!has_any(pid, shared, file) || is_ours(pid)) continue;
    sharers.push_back(
        fmt::format("process {} has GPU memory of the job, but is not a descendant of process {}",
                    process::describe_process(pid), process::describe_process(members.front())));
  }
  return sharers;
}

void examine_gpu_users(const proto::MigrateRequest& request, const worker::Config& config,
                       Examination& found) {
  find_gpu_users(found);
  std::vector<gpu::Listed> listed;
  std::uint32_t number = 0;
  for (Member& member : found.members) {
    const gpu::MemberId id{number++};
    if (!member.access) continue;
    const bool is_listed = list_vram(id, member, found, listed);
    if (is_listed && found.host.driver) examine_control(member, found);
  }
  examine_allocations(listed, found);
  if (found.driver_alone) examine_driver_alone(request, config, found);
  examine_gpus(found);
}

}  // namespace gcr::preflight

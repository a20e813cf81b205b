#include "migrate-agent/preflight/examine/examination.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <thread>

#include "migrate-agent/commit/journal/journal.h"
#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/criu/threads/landlock.h"
#include "migrate-agent/gpu/access/door/door.h"
#include "migrate-agent/gpu/access/driver/driver_access.h"
#include "migrate-agent/gpu/device/device.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/preflight/amd/amd.h"
#include "migrate-agent/preflight/compare/comparison.h"
#include "migrate-agent/preflight/examine/shared_vram.h"
#include "migrate-agent/preflight/inventory/used_vram.h"
#include "migrate-agent/process/inspect/descriptors.h"
#include "migrate-agent/process/inspect/inspect.h"
#include "migrate-agent/process/inspect/sharing.h"
#include "migrate-agent/process/inspect/system_v.h"
#include "migrate-agent/transfer/negotiation/offer.h"
#include "src/base/limits.h"
#include "src/base/units.h"
#include "src/control/wire.h"

namespace gcr::preflight {
namespace {

/// A child is in vfork for less than a millisecond, if nothing holds it up.
constexpr std::chrono::seconds kExecutionPatience{2};
constexpr std::chrono::milliseconds kExecutionPause{1};

/// The id of a thread of `pid` in its own PID namespace. The driver may give ids of the caller's
/// namespace, which differ for a process that was restored into a namespace of its own.
pid_t in_own_namespace(pid_t pid, pid_t tid) {
  const auto pids = procfs::namespace_pids(fmt::format("{}/task/{}", pid, tid));
  return pids.empty() ? tid : pids.back();
}

/// The last number of a line like "NSsid: 4100 17".
pid_t innermost(const std::string& line) {
  std::istringstream numbers(line);
  pid_t last = 0;
  for (pid_t number = 0; numbers >> number;) last = number;
  return last;
}

/// Every PID that the process uses in its own PID namespace.
std::set<pid_t> used_pids(pid_t pid) {
  std::set<pid_t> used;
  for (const char* field : {"NSpid", "NSpgid", "NSsid"}) {
    used.insert(innermost(procfs::status_field(std::to_string(pid), field)));
  }
  for (const pid_t tid : procfs::threads(pid)) used.insert(in_own_namespace(pid, tid));
  used.erase(0);
  return used;
}

/// The control state of a member, and the thread that restores it.
void look_at_control(const GpuUser& user, Examination& found) {
  const pid_t pid = found.pids[user.member];
  const auto control = found.host.driver->control(pid);
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
    found.members[user.member].set_cuda_restore_tid(in_own_namespace(pid, *thread));
  } else {
    found.findings.add(findings::kCudaState, thread.error().message());
  }
}

void look_at_gpus(Examination& found) {
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

/// A member that has files of the GPU's driver and no door, and why it has none.
struct Doorless {
  std::size_t member;
  Error reason;
};

/// One at most can be moved, through the driver alone: what several share, nobody can tell. Asks
/// the driver about it, but not about one of several: that may be a child that was forked.
void look_at_doorless(std::vector<Doorless> doorless, Examination& found) {
  const auto describe = [&](const Doorless& one) {
    return process::describe_process(found.pids[one.member]);
  };
  const auto refuse = [&](const Doorless& one) {
    found.findings.add(findings::kNoDoor, fmt::format("process {} uses the GPU's driver: {}",
                                                      describe(one), one.reason.message()));
  };
  // The library has made its memory what the driver alone cannot restore.
  std::erase_if(doorless, [&](const Doorless& one) {
    const bool under_preload = found.members[one.member].under_preload();
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
  const pid_t pid = found.pids[one.member];
  const char state = procfs::state(std::to_string(pid));
  if (state == 'T' || state == 't') {
    found.findings.add(findings::kCudaState,
                       fmt::format("process {} is stopped, and the driver cannot ask "
                                   "it",
                                   describe(one)));
  } else if (!found.host.driver || !found.host.driver->control(pid)->state() ||
             found.host.driver->control(pid)->goes_with_dump()) {
    refuse(one);
  } else {
    found.driver_alone.emplace().pid = pid;
    found.members[one.member].set_driver_alone(true);
    found.gpu_users.push_back(
        {one.member, std::make_unique<gpu::DriverAccess>(pid, *found.host.driver)});
  }
}

/// Its VRAM will be ordinary memory of the job's for a while, on both hosts.
void look_at_driver_alone(const proto::MigrateRequest& request, const worker::Config& config,
                          Examination& found) {
  DriverAlone& alone = *found.driver_alone;
  auto vram = inventory::used_vram(alone.pid, found.host.driver);
  if (!vram) {
    found.findings.add(findings::kCudaState, vram.error().message());
    return;
  }
  alone.vram = *std::move(vram);
  std::uint64_t resident = 0;
  for (proto::ProcessFacts& member : found.members) {
    resident += member.resident_bytes();
    if (!member.driver_alone()) continue;
    member.set_image_bytes(member.image_bytes() + alone.vram_bytes());
  }
  if (alone.vram.size() > 1) {
    found.findings.add(findings::kUnseenMemory,
                       fmt::format("process {} may use {} GPUs, and a multicast object on them",
                                   process::describe_process(alone.pid), alone.vram.size()));
  }
  check_unseen_memory(found.pids, found.lister.shared(), found.findings);
  const proto::GroupLimits& limits = found.members.front().limits();
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
  bool busy = false;
  for (std::size_t i = 0; i < found.pids.size(); ++i) {
    const pid_t pid = found.pids[i];
    if (procfs::is_in_vfork(pid)) continue;  // what it has is its parent's
    auto access = gpu::open_access(pid);
    if (access) {
      found.gpu_users.push_back({i, std::move(*access)});
    } else if (access.error().code() == Code::kUnavailable) {
      found.findings.add(findings::kInMigration, access.error().message());
      busy = true;
    } else {
      if (!none) none = access.error();
      if (process::driver_file_in_use(pid)) doorless.push_back({i, access.error()});
    }
  }
  look_at_doorless(doorless, found);
  if (!found.gpu_users.empty() || !doorless.empty() || busy || !none) return;
  found.findings.add(findings::kNoDoor, none->message());
}

/// A child in vfork executes its program in a moment: then it is a process like others. Its parent,
/// and so the job, cannot be stopped before.
void outlast_vforks(const std::vector<pid_t>& pids, findings::Findings& findings) {
  const auto end = std::chrono::steady_clock::now() + kExecutionPatience;
  for (const pid_t pid : pids) {
    while (procfs::is_in_vfork(pid) && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(kExecutionPause);
    }
    if (!procfs::is_in_vfork(pid)) continue;
    findings.add(findings::kInVfork,
                 fmt::format("process {} has its parent's memory still, as in vfork",
                             process::describe_process(pid)));
  }
}

/// False if it cannot be told.
bool look_at_vram(GpuUser& user, Examination& found, std::vector<gpu::Listed>& listed) {
  const gpu::MemberId id{static_cast<std::uint32_t>(user.member)};
  const auto state = user.access->look();
  auto listing = found.lister.list(id, *user.access, [](const auto&) { return false; });
  if (!state || !listing) {
    found.findings.add(findings::kNoDoor, (state ? listing.error() : state.error()).message());
    return false;
  }
  check_access(*state, found.findings);
  found.members[user.member].set_door_tid(state->thread);
  listed.push_back(std::move(listing->listed));
  return true;
}

/// The VRAM of the job as a whole.
void look_at_allocations(const std::vector<gpu::Listed>& listed, Examination& found) {
  found.job = gpu::Job(static_cast<std::uint32_t>(found.members.size()));
  (void)found.job.follow(listed);
  check_inventory(found.job.allocations().size(), found.findings);
  if (const Status known = check_sizes(found.job); !known) {
    found.findings.add(findings::kForeignHandles, known.error().message());
  }
  for (std::string& sharer : find_sharers(found.lister.shared(), found.pids)) {
    found.findings.add(findings::kForeignHandles, std::move(sharer));
  }
}

/// What would have to be restored for this member alone.
void compare_with_root(pid_t pid, pid_t root, process::Inspection& member,
                       const proto::GroupLimits& root_limits) {
  for (const char* kind : {"mnt", "pid", "time", "ipc"}) {
    if (procfs::namespace_link(pid, kind) == procfs::namespace_link(root, kind)) continue;
    member.findings.add(findings::kNamespaces,
                        fmt::format("it is in another {} namespace than process {}", kind,
                                    process::describe_process(root)));
  }
  if (member.facts.limits().SerializeAsString() == root_limits.SerializeAsString()) return;
  member.findings.add(findings::kCgroupLimits,
                      fmt::format("its control groups have other limits than "
                                  "those of process {}",
                                  process::describe_process(root)));
}

bool in_same_groups(pid_t pid, pid_t other) {
  return procfs::read_text(fmt::format("/proc/{}/cgroup", pid)) ==
         procfs::read_text(fmt::format("/proc/{}/cgroup", other));
}

/// As findings about a job say whose they are.
std::vector<proto::Finding> findings_of_member(pid_t pid, findings::Findings findings) {
  std::vector<proto::Finding> list = findings.release();
  const std::string who = process::describe_process(pid);
  for (proto::Finding& finding : list) {
    finding.set_found(fmt::format("in process {}: {}", who, finding.found()));
  }
  return list;
}

/// What the examination of one process needs.
struct Look {
  process::Together together;
  process::OutsideTcp outside_tcp;
  const proto::GroupLimits* limits;  ///< of all, if they are known; else null
};

/// False if the process must not be examined further.
bool look_at_root(pid_t pid, const Look& look, Examination& found) {
  auto inspection = process::inspect(pid, look.together, look.outside_tcp, look.limits);
  if (!inspection) {
    const bool gone = inspection.error().code() == Code::kNotFound;
    found.findings.add(gone ? findings::kNoProcess : findings::kCannotInspect,
                       inspection.error().message());
    return false;
  }
  found.pids.push_back(pid);
  found.members.push_back(std::move(inspection->facts));
  found.confinements.push_back(std::move(inspection->confinement));
  const bool ours = std::ranges::none_of(inspection->findings.list(), [](const auto& finding) {
    return findings::is(finding, findings::kNotOurs);
  });
  found.findings.take(inspection->findings.release());
  return ours;
}

/// Zombies move with their parents, and have nothing to examine.
void look_at_member(pid_t pid, const Look& look, Examination& found) {
  const pid_t root = found.pids.front();
  const proto::GroupLimits limits = found.members.front().limits();
  auto inspection = process::inspect(pid, look.together, look.outside_tcp,
                                     in_same_groups(pid, root) ? &limits : look.limits);
  if (inspection) {
    compare_with_root(pid, root, *inspection, limits);
    found.pids.push_back(pid);
    found.members.push_back(std::move(inspection->facts));
    found.confinements.push_back(std::move(inspection->confinement));
    found.findings.take(findings_of_member(pid, std::move(inspection->findings)));
  } else if (inspection.error().code() != Code::kNotFound) {
    found.findings.add(findings::kCannotInspect, inspection.error().message());
  }
}

/// Files in memory that the job alone has go along.
void look_at_memory_files(Examination& found) {
  std::vector<std::vector<process::NamedFile>> named;
  for (const pid_t pid : found.pids) {
    auto files = process::named_files(pid, false);
    named.push_back(files ? std::move(*files) : std::vector<process::NamedFile>());
  }
  std::vector<memory_files::Member> members;
  for (std::size_t i = 0; i < found.pids.size(); ++i) members.push_back({found.pids[i], named[i]});
  memory_files::Outgoing outgoing = memory_files::find(members);
  found.findings.take(outgoing.findings.release());
  std::uint64_t bytes = 0;
  for (memory_files::OutgoingFile& file : outgoing.files) {
    bytes += file.fact.held_bytes();
    *found.memory_files.Add() = std::move(file.fact);
  }
  proto::ProcessFacts& root = found.members.front();
  root.set_image_bytes(root.image_bytes() + bytes);
  for (proto::ProcessFacts& member : found.members) {
    for (proto::FileFact& file : *member.mutable_files()) {
      const auto other = outgoing.shared_with.find(file.path());
      if (other != outgoing.shared_with.end()) file.set_shared_with(other->second);
    }
  }
}

/// Those of the host's namespace that may be the job's.
void look_at_system_v(Examination& found) {
  if (procfs::namespace_link(found.pids.front(), "ipc") !=
      procfs::namespace_link(::getpid(), "ipc")) {
    return;
  }
  std::set<uid_t> users;
  for (const proto::ProcessFacts& member : found.members) users.insert(member.uid());
  const std::string objects = process::unattached_objects(users);
  if (objects.empty()) return;
  found.findings.add(findings::kSystemVStays,
                     fmt::format("the users of the job have {} on this host", objects));
}

/// False if they must not be examined further.
bool look_at_members(const proto::MigrateRequest& request, const std::vector<pid_t>& pids,
                     const proto::GroupLimits* limits, Examination& found) {
  const Look look{process::Together({pids.begin(), pids.end()}), outside_tcp(request), limits};
  if (!look_at_root(pids.front(), look, found)) return false;
  if (pids.size() > gpu::kMaxMembers) {
    found.findings.add(
        findings::kTooManyProcesses,
        fmt::format("it has {} processes, {} are allowed", pids.size(), gpu::kMaxMembers));
    return false;
  }
  for (const pid_t pid : std::span(pids).subspan(1)) look_at_member(pid, look, found);
  for (const pid_t pid : pids) {
    for (const pid_t used : used_pids(pid)) found.members.front().add_used_pids(used);
  }
  look_at_memory_files(found);
  look_at_system_v(found);
  return true;
}

/// What CRIU cannot dump by itself. A host without AMD's GPUs has nothing that HIP could use.
void look_at_plugin(const worker::Config& config, Examination& found) {
  const bool has_gpus = std::ranges::any_of(
      found.host.facts.gpus(), [](const proto::Gpu& gpu) { return gpu.kfd_id() != 0; });
  for (std::size_t i = 0; i < found.members.size(); ++i) {
    const std::string name = criu::plugin_for(found.pids[i]);
    if (name.empty() || (!has_gpus && !procfs::uses_kfd(found.pids[i]))) continue;
    found.members[i].set_needs_amdgpu_plugin(true);
    const std::uint32_t release = found.host.facts.criu_version();
    if (found.criu_plugin != nullptr || release == 0) continue;
    auto plugin = criu::open_plugin(config.criu, name, release);
    if (!plugin) {
      found.findings.add(findings::kCriuPlugin, plugin.error().message());
      return;
    }
    found.criu_plugin = std::move(*plugin);
  }
}

/// It was the suspend that has stopped them.
void take_suspended(const SuspendedJob& suspended, Examination& found) {
  found.suspended = true;
  found.job = suspended.job;
  *found.host.facts.mutable_gpus() = suspended.gpus;
  for (std::size_t i = 0; i < found.pids.size(); ++i) {
    const auto threads = suspended.gpu_members.find(found.pids[i]);
    if (threads == suspended.gpu_members.end()) continue;
    found.members[i].set_door_tid(threads->second.door);
    found.members[i].set_cuda_restore_tid(threads->second.cuda_restore);
  }
  std::vector<proto::Finding> findings = found.findings.release();
  std::erase_if(findings, [](const proto::Finding& one) { return one.id() == "stopped"; });
  found.findings.take(std::move(findings));
}

}  // namespace

void check_access(const gpu::AccessState& state, findings::Findings& findings) {
  if (state.managed_memory) {
    findings.add(findings::kManagedMemory,
                 "the process uses managed memory (cudaMallocManaged, hipMallocManaged)");
  }
  if (state.ipc_memory) {
    findings.add(
        findings::kIpcMemory,
        "the process shares allocations of less than 2 MiB with another one by legacy IPC");
  }
  if (state.foreign_handles) {
    findings.add(findings::kForeignHandles,
                 "GPU memory is exported in a way that cannot be taken back: bound to a multicast "
                 "object or a sparse array, as a dma-buf or by a fabric handle");
  }
  if (state.lost_pools) {
    findings.add(findings::kPoolMemory,
                 "a memory pool was exported or imported (cudaMemPoolExportToShareableHandle), or "
                 "has memory on the host");
  }
  if (state.profiled) {
    findings.add(findings::kProfiler, "a profiler has attached itself to CUDA, through CUPTI");
  }
  if (!state.past_gate.empty()) findings.add(findings::kPastGate, state.past_gate);
  if (state.untracked_bytes > 0 && !state.managed_memory) {
    findings.add(findings::kUntrackedMemory, fmt::format("{} of GPU memory are not tracked",
                                                         format_bytes(state.untracked_bytes)));
  }
  if (state.withheld > 0) {
    findings.add(findings::kWithheldFunctions,
                 fmt::format("{} lookups of driver functions that the preload library does not "
                             "know were answered with «not found»",
                             state.withheld));
  }
}

void check_inventory(std::size_t allocations, findings::Findings& findings) {
  if (allocations <= kMaxBuffers) return;
  findings.add(findings::kTooManyBuffers,
               fmt::format("it has {} allocations, {} are allowed", allocations, kMaxBuffers));
}

proto::Buffer describe(const gpu::Allocation& allocation) {
  proto::Buffer buffer;
  buffer.set_id(allocation.id.value);
  buffer.set_size_bytes(allocation.size_bytes);
  buffer.set_gpu_uuid(to_bytes(allocation.gpu));
  if (allocation.host_node) buffer.set_host_node(*allocation.host_node);
  for (const gpu::Mapping& mapping : allocation.mapped_by) {
    proto::Mapping& out = *buffer.add_mapped_by();
    out.set_member(mapping.member.value);
    out.set_local_id(mapping.local_id);
  }
  return buffer;
}

Status check_sizes(const gpu::Job& job) {
  const auto unknown = std::ranges::find_if(
      job.allocations(), [](const auto& entry) { return entry.second.size_bytes == 0; });
  if (unknown == job.allocations().end()) return {};
  return Error(Code::kRefused,
               "GPU memory was imported and never mapped, and no process of the job made it");
}

namespace {

Examination look_at_all(const proto::MigrateRequest& request, const worker::Config& config,
                        const std::vector<pid_t>& pids, const SuspendedJob* suspended) {
  Examination found;
  found.host = survey(config, found.findings);
  if (suspended == nullptr) outlast_vforks(pids, found.findings);
  const proto::GroupLimits* limits = suspended == nullptr ? nullptr : &suspended->limits;
  if (!look_at_members(request, pids, limits, found)) return found;
  check_room(config, found.findings);
  look_at_plugin(config, found);
  if (suspended != nullptr) {
    take_suspended(*suspended, found);
    return found;
  }
  check_amd_processes(found.pids, found.host.topology, config.sysfs, found.findings);
  find_gpu_users(found);
  std::vector<gpu::Listed> listed;
  for (GpuUser& user : found.gpu_users) {
    const bool told = look_at_vram(user, found, listed);
    if (told && found.host.driver) look_at_control(user, found);
  }
  look_at_allocations(listed, found);
  if (found.driver_alone) look_at_driver_alone(request, config, found);
  look_at_gpus(found);
  return found;
}

/// Asks the threads, which nobody else traces while we have the doors. A process that cannot be
/// moved anyway is left alone.
void look_at_landlock(Examination& found) {
  if (found.findings.has_blocker() || found.driver_alone) return;
  for (const pid_t pid : found.pids) {
    const std::vector<pid_t> threads = criu::threads_in_landlock(pid);
    if (threads.empty()) continue;
    found.findings.add(findings::kLandlock,
                       fmt::format("{} threads of process {} are in a domain of Landlock",
                                   threads.size(), process::describe_process(pid)));
  }
}

}  // namespace

Status check_accepted(const proto::MigrateRequest& request) {
  for (const std::string& id : request.accepted()) {
    if (findings::can_be_accepted(id)) continue;
    return Error(Code::kInvalidArgument,
                 fmt::format("\"{}\" is no finding that can be accepted", control::printable(id)));
  }
  return {};
}

Examination examine(const proto::MigrateRequest& request, const worker::Config& config,
                    const std::vector<pid_t>& pids, const SuspendedJob* suspended) {
  Examination found = look_at_all(request, config, pids, suspended);
  if (suspended == nullptr) look_at_landlock(found);
  found.findings.accept(request.accepted());
  return found;
}

process::OutsideTcp outside_tcp(const proto::MigrateRequest& request) {
  return request.close_tcp() ? process::OutsideTcp::kClose : process::OutsideTcp::kRefuse;
}

namespace {

/// Success without blockers. What a process lacks that is ending is no blocker.
Status judge_member(pid_t pid, findings::Findings findings) {
  const std::string reason = findings::reason_of(findings_of_member(pid, std::move(findings)));
  if (reason.empty()) return {};
  const auto stat = procfs::read_stat(pid);
  if (!stat || procfs::has_ended(*stat) || procfs::is_exiting(*stat)) {
    return Error(Code::kNotFound, "it ended while it was looked at");  // which may be the reason
  }
  return Error(Code::kRefused, reason);
}

}  // namespace

Result<process::Confinement> examine_late(const proto::MigrateRequest& request, pid_t pid,
                                          const std::vector<pid_t>& pids,
                                          const proto::GroupLimits& limits) {
  const process::Together together({pids.begin(), pids.end()});
  GCR_ASSIGN(auto inspection,
             process::inspect(pid, together, outside_tcp(request),
                              in_same_groups(pid, request.pid()) ? &limits : nullptr));
  compare_with_root(pid, request.pid(), inspection, limits);
  inspection.findings.accept(request.accepted());
  GCR_TRY(judge_member(pid, std::move(inspection.findings)));
  return std::move(inspection.confinement);
}

Status examine_again(pid_t pid, const process::Confinement& before) {
  auto findings = process::inspect_again(pid, before);
  const Status fits = findings ? judge_member(pid, std::move(*findings)) : findings.error();
  return !fits && fits.error().code() == Code::kNotFound ? Status() : fits;
}

proto::PreflightRequest preflight_request(const Examination& examination,
                                          const proto::MigrateRequest& request,
                                          const worker::Config& config) {
  proto::PreflightRequest asked;
  asked.set_no_prefill(request.no_prefill() || examination.suspended);
  asked.set_suspended(examination.suspended);
  *asked.mutable_device_map() = request.device_map();
  asked.mutable_pids()->Assign(examination.pids.begin(), examination.pids.end());
  *asked.mutable_accepted() = request.accepted();
  asked.set_slurm_job(request.slurm_job());
  asked.set_source_agent(config.advertise.empty() ? fmt::format(":{}", config.listen.port)
                                                  : config.advertise);
  asked.set_transport(request.transport());
  asked.set_plaintext(request.plaintext());
  *asked.mutable_offer() = transfer::data_offer(config.unencrypted_data);
  *asked.mutable_host() = examination.host.facts;
  asked.mutable_members()->Assign(examination.members.begin(), examination.members.end());
  for (const auto& [id, one] : examination.job.allocations()) {
    proto::Buffer& buffer = *asked.add_buffers();
    buffer = describe(one);
    buffer.clear_id();
    buffer.clear_mapped_by();
  }
  if (examination.driver_alone) {
    for (const auto& [gpu, bytes] : examination.driver_alone->vram) {
      proto::GpuUse& use = *asked.add_driver_vram();
      use.set_uuid(to_bytes(gpu));
      use.set_vram_bytes(bytes);
    }
  }
  *asked.mutable_memory_files() = examination.memory_files;
  const auto boot_id = journal::boot_id();
  if (boot_id) asked.set_boot_id(*boot_id);
  return asked;
}

}  // namespace gcr::preflight

#include "migrate-agent/preflight/examine/examination.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "migrate-agent/commit/journal/journal.h"
#include "migrate-agent/criu/threads/landlock.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/preflight/amd/amd.h"
#include "migrate-agent/preflight/examine/steps.h"
#include "migrate-agent/process/inspect/descriptors.h"
#include "migrate-agent/process/inspect/inspect.h"
#include "migrate-agent/process/layer/tree.h"
#include "migrate-agent/transfer/negotiation/negotiation.h"
#include "src/control/wire.h"

namespace gcr::preflight {
namespace {

/// Takes the facts of a suspended job from when it was suspended, and drops the findings that its
/// processes are stopped: the suspend stopped them.
void add_suspended(const SuspendedJob& suspended, Examination& found) {
  found.suspended = true;
  found.job = suspended.job;
  *found.host.facts.mutable_gpus() = suspended.gpus;
  for (Member& member : found.members) {
    const auto threads = suspended.gpu_members.find(member.pid);
    if (threads == suspended.gpu_members.end()) continue;
    member.facts.set_door_tid(threads->second.door);
    member.facts.set_cuda_restore_tid(threads->second.cuda_restore);
  }
  std::vector<proto::Finding> findings = found.findings.release();
  std::erase_if(findings, [](const proto::Finding& one) { return one.id() == "stopped"; });
  found.findings.take(std::move(findings));
}

Examination examine_all(const proto::MigrateRequest& request, const worker::Config& config,
                        const std::vector<pid_t>& pids, const SuspendedJob* suspended) {
  Examination found;
  found.host = survey(config, found.findings);
  if (suspended == nullptr) wait_for_vforks(pids, found.findings);
  const proto::GroupLimits* limits = suspended == nullptr ? nullptr : &suspended->limits;
  if (!examine_members(request, pids, limits, found)) return found;
  check_disk_space(config, found.findings);
  find_plugins(config, found);
  if (suspended != nullptr) {
    add_suspended(*suspended, found);
    return found;
  }
  check_amd_processes(found.pids(), found.host.topology, config.sysfs, found.findings);
  examine_gpu_users(request, config, found);
  return found;
}

/// Finds threads in a Landlock domain, which can only be tested by stopping them. While this
/// process holds the doors, no other agent traces them. Skipped for a job that cannot be moved
/// anyway.
void check_landlock(Examination& found) {
  if (found.findings.has_blocker() || found.driver_alone) return;
  for (const pid_t pid : found.pids()) {
    const std::vector<pid_t> threads = criu::threads_in_landlock(pid);
    if (threads.empty()) continue;
    found.findings.add(findings::kLandlock,
                       fmt::format("{} threads of process {} are in a Landlock domain",
                                   threads.size(), process::describe_process(pid)));
  }
}

void add_streams(const procfs::Container& container, proto::JobContainer& facts) {
  for (const auto& [number, link] : process::streams_of(container)) {
    proto::ContainerStream& stream = *facts.add_streams();
    stream.set_number(static_cast<std::uint32_t>(number));
    stream.set_pipe(std::strtoull(link.c_str() + std::strlen("pipe:["), nullptr, 10));
  }
}

/// Marks the files that come with the container: the destination has none of them yet.
void mark_carried(const layer::Trees& carried, proto::PreflightRequest& asked) {
  for (proto::ProcessFacts& member : *asked.mutable_members()) {
    for (proto::FileFact& file : *member.mutable_files()) {
      file.set_carried(layer::is_carried(carried, file.path()));
    }
  }
}

}  // namespace

std::vector<pid_t> Examination::pids() const {
  std::vector<pid_t> pids;
  for (const Member& member : members) pids.push_back(member.pid);
  return pids;
}

Status check_accepted(const proto::MigrateRequest& request) {
  for (const std::string& id : request.accepted()) {
    if (findings::can_be_accepted(id)) continue;
    return Error(Code::kInvalidArgument, fmt::format("\"{}\" is not a finding that can be accepted",
                                                     control::printable(id)));
  }
  return {};
}

Examination examine(const proto::MigrateRequest& request, const worker::Config& config,
                    const std::vector<pid_t>& pids, const SuspendedJob* suspended) {
  Examination found = examine_all(request, config, pids, suspended);
  if (suspended == nullptr) {
    check_landlock(found);
  } else if (request.keep_tcp()) {
    found.findings.add(findings::kAddressStays, "the job is suspended");
  }
  found.findings.accept(request.accepted());
  return found;
}

process::OutsideTcp outside_tcp(const proto::MigrateRequest& request) {
  if (request.keep_tcp()) return process::OutsideTcp::kKeep;
  return request.close_tcp() ? process::OutsideTcp::kClose : process::OutsideTcp::kRefuse;
}

proto::PreflightRequest preflight_request(const Examination& examination,
                                          const proto::MigrateRequest& request,
                                          const worker::Config& config) {
  proto::PreflightRequest asked;
  asked.set_no_prefill(request.no_prefill() || examination.suspended);
  asked.set_suspended(examination.suspended);
  *asked.mutable_device_map() = request.device_map();
  *asked.mutable_accepted() = request.accepted();
  asked.set_slurm_job(request.slurm_job());
  asked.set_source_agent(config.advertise.empty() ? fmt::format(":{}", config.listen.port)
                                                  : config.advertise);
  asked.set_transport(request.transport());
  asked.set_plaintext(request.plaintext());
  *asked.mutable_offer() = transfer::data_offer(config.unencrypted_data);
  *asked.mutable_host() = examination.host.facts;
  for (const Member& member : examination.members) {
    asked.add_pids(member.pid);
    *asked.add_members() = member.facts;
  }
  for (const auto& [id, one] : examination.job.allocations()) {
    proto::Buffer& buffer = *asked.add_buffers();
    buffer = gpu::to_message(one);
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
  if (examination.container) {
    if (request.has_container()) *asked.mutable_container() = request.container();
    add_streams(*examination.container, *asked.mutable_from_container());
    mark_carried(examination.carried, asked);
  }
  if (examination.network) *asked.mutable_network() = *examination.network;
  const auto boot_id = journal::boot_id();
  if (boot_id) asked.set_boot_id(*boot_id);
  return asked;
}

}  // namespace gcr::preflight

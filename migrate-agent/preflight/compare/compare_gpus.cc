// How GPUs are paired. From the source's GPUs those are removed that need no pair; the ones that
// the process uses are marked. mover::map_gpus() then pairs them with this host's GPUs of the same
// model and size, by the operator's order (--device-map) or else by free VRAM. For each pair the
// buffers and the memory that the driver restores must fit, and for AMD GPUs all properties on
// which CRIU's plugin insists must be equal.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/preflight/amd/amd.h"
#include "migrate-agent/preflight/compare/comparison.h"
#include "migrate-agent/preflight/inventory/nvml.h"
#include "migrate-agent/preflight/inventory/vram.h"
#include "migrate-agent/process/inspect/descriptors.h"
#include "migrate-agent/process/inspect/together.h"

namespace gcr::preflight {
namespace {

using device::Vendor;

/// Returns the part of a GPU's description that must be equal on both sides.
std::string model_of(const proto::Gpu& gpu) {
  if (!gpu.has_amd()) return gpu.name();
  return fmt::format("{} {} {:04x}", gpu.name(), gpu.amd().architecture(), gpu.amd().device_id());
}

std::vector<mover::MappableGpu> mappable(const proto::HostFacts& host) {
  std::vector<mover::MappableGpu> gpus;
  for (const proto::Gpu& gpu : host.gpus()) {
    gpus.push_back({.uuid = to_uuid(gpu.uuid()),
                    .name = model_of(gpu),
                    .total_bytes = gpu.total_bytes(),
                    .chosen = gpu.allowed() && !gpu.hidden(),
                    .hidden = gpu.hidden(),
                    .vendor = gpu.has_amd() ? Vendor::kAmd : Vendor::kNvidia});
  }
  return gpus;
}

/// Returns this host's GPUs. If processes may be placed on several, includes their free VRAM, which
/// decides.
std::vector<mover::MappableGpu> places(const proto::HostFacts& here,
                                       std::shared_ptr<const device::Driver> driver,
                                       const worker::Config& config) {
  std::vector<mover::MappableGpu> gpus = mappable(here);
  if (std::ranges::count(gpus, true, &mover::MappableGpu::chosen) < 2) return gpus;
  inventory::FreeVram free_vram(std::move(driver), config.sysfs);
  for (mover::MappableGpu& gpu : gpus) {
    if (gpu.chosen) gpu.free_bytes = free_vram.of(gpu.uuid).value_or(0);
  }
  return gpus;
}

const proto::Gpu* find_gpu(const proto::HostFacts& host, const Uuid& uuid) {
  const auto found = std::ranges::find_if(
      host.gpus(), [&](const proto::Gpu& gpu) { return to_uuid(gpu.uuid()) == uuid; });
  return found == host.gpus().end() ? nullptr : &*found;
}

void check_vram(const proto::Gpu& gpu, std::uint64_t bytes, bool no_prefill,
                mover::IncomingVram& vram, findings::Findings& findings) {
  // Without prefill VRAM that is in use now may be free by the switchover.
  const auto free =
      no_prefill ? Result<std::uint64_t>(gpu.total_bytes()) : vram.free_bytes(to_uuid(gpu.uuid()));
  if (!free) {
    findings.add(findings::kGpuUnusable, free.error().message());
  } else if (*free < bytes + kContextReserveBytes) {
    findings.add(
        findings::kVramTooSmall,
        fmt::format("{} has {} of VRAM{}; {} for buffers and {} for the process's "
                    "context are needed",
                    gpu_name(to_uuid(gpu.uuid())), format_bytes(*free), no_prefill ? "" : " free",
                    format_bytes(bytes), format_bytes(kContextReserveBytes)));
  }
}

/// Returns whether the job's control groups let it open this GPU of the source.
bool may_open(const proto::PreflightRequest& request, const Uuid& gpu) {
  const proto::GroupLimits& limits = request.members(0).limits();
  return !limits.has_devices() ||
         std::ranges::any_of(limits.devices().allowed(), [&](const proto::Device& device) {
           return to_uuid(device.gpu_uuid()) == gpu;
         });
}

/// Removes GPUs of the source that need no pair. If any member uses CUDA, CUDA needs a pair for
/// each NVIDIA GPU that the job may open; the others are hidden, and their pairs come last,
/// since limits can have changed after CUDA started. CRIU's plugin needs one for each AMD GPU that
/// the job may open, whether or not it is used.
void leave_out_unused(const proto::PreflightRequest& request,
                      std::vector<mover::MappableGpu>& source) {
  const auto uses = [&](Vendor vendor) {
    return std::ranges::any_of(
        source, [&](const mover::MappableGpu& gpu) { return gpu.chosen && gpu.vendor == vendor; });
  };
  const auto any_member = [&](const auto& has) {
    return std::ranges::any_of(request.members(), has);
  };
  const bool has_cuda_state =
      any_member([](const auto& member) { return member.cuda_restore_tid() != 0; });
  const bool has_hip_state =
      any_member([](const auto& member) { return member.needs_amdgpu_plugin(); });
  const bool needs_nvidia =
      uses(Vendor::kNvidia) || has_cuda_state || !(uses(Vendor::kAmd) || has_hip_state);
  std::erase_if(source, [&](const mover::MappableGpu& gpu) {
    if (gpu.chosen) return false;
    return gpu.vendor == Vendor::kAmd ? !has_hip_state || !may_open(request, gpu.uuid)
                                      : !needs_nvidia;
  });
  for (mover::MappableGpu& gpu : source) {
    gpu.hidden = !gpu.chosen && !may_open(request, gpu.uuid);
  }
}

}  // namespace

std::map<Uuid, std::uint64_t> wanted_vram(const proto::PreflightRequest& request,
                                          const std::vector<device::GpuPair>& map) {
  std::map<Uuid, std::uint64_t> wanted;
  for (const proto::Buffer& buffer : request.buffers()) {
    const auto pair = std::ranges::find(map, to_uuid(buffer.gpu_uuid()), &device::GpuPair::from);
    if (pair != map.end() && !buffer.has_host_node()) wanted[pair->to] += buffer.size_bytes();
  }
  for (const proto::GpuUse& use : request.driver_vram()) {
    const auto pair = std::ranges::find(map, to_uuid(use.uuid()), &device::GpuPair::from);
    if (pair != map.end()) wanted[pair->to] += use.vram_bytes();
  }
  return wanted;
}

std::vector<device::GpuPair> map_gpus(const proto::PreflightRequest& request,
                                      const proto::HostFacts& here, const worker::Config& config,
                                      mover::IncomingVram& vram, findings::Findings& findings) {
  std::vector<mover::MappableGpu> source = mappable(request.host());
  std::set<Uuid> used;
  for (const proto::Buffer& buffer : request.buffers()) used.insert(to_uuid(buffer.gpu_uuid()));
  for (const proto::GpuUse& use : request.driver_vram()) used.insert(to_uuid(use.uuid()));
  for (mover::MappableGpu& gpu : source) gpu.chosen = used.erase(gpu.uuid) != 0;
  for (const Uuid& gpu : used) {
    findings.add(findings::kGpuUnknown,
                 fmt::format("the process has buffers on {}, which the source's "
                             "agent does not list",
                             gpu_name(gpu)));
  }
  leave_out_unused(request, source);
  auto map = mover::map_gpus(source, places(here, vram.driver(), config),
                             mover::pairs_of(request.device_map()));
  if (!map) {
    findings.add(findings::kGpuMap, map.error().message());
    return {};
  }
  for (const auto& [uuid, bytes] : wanted_vram(request, *map)) {
    const proto::Gpu* gpu = find_gpu(here, uuid);
    if (gpu == nullptr) continue;  // the map has only GPUs of this host
    check_gpu(*gpu, here, findings);
    check_vram(*gpu, bytes, request.no_prefill(), vram, findings);
  }
  for (const device::GpuPair& pair : *map) {
    const proto::Gpu* from = find_gpu(request.host(), pair.from);
    const proto::Gpu* to = find_gpu(here, pair.to);
    if (!from->has_amd()) continue;
    compare_amd_gpus(*from, *to, findings);
    for (const proto::ProcessFacts& process : request.members()) {
      compare_xnack(process, *from, *to, findings);
    }
  }
  return std::move(*map);
}

criu::PluginMap plugin_map(const proto::HostFacts& source, const proto::HostFacts& here,
                           const std::vector<device::GpuPair>& gpu_map) {
  criu::PluginMap map;
  for (const device::GpuPair& pair : gpu_map) {
    const proto::Gpu* from = find_gpu(source, pair.from);
    const proto::Gpu* to = find_gpu(here, pair.to);
    if (from->kfd_id() != 0 && to->kfd_id() != 0) map[from->kfd_id()] = to->kfd_id();
  }
  return map;
}

void check_other_gpu_users(const proto::PreflightRequest& request, bool same_machine,
                           const std::vector<device::GpuPair>& gpu_map,
                           findings::Findings& findings) {
  const auto wanted = wanted_vram(request, gpu_map);
  if (wanted.size() < 2) return;
  if (procfs::namespace_link(::getpid(), "pid") != procfs::kFirstPidNamespace) return;
  const auto nvml = inventory::Nvml::load();
  if (!nvml) return;
  std::set<pid_t> members;
  if (same_machine) members.insert(request.pids().begin(), request.pids().end());
  for (const auto& [gpu, wanted_bytes] : wanted) {
    const auto users = nvml->used_by_process(gpu);
    if (!users) continue;
    for (const auto& [pid, bytes] : *users) {
      if (members.contains(pid) || process::is_agent_or_gone(pid)) continue;
      findings.add(findings::kBusyGpu, fmt::format("{} is used by process {}", gpu_name(gpu),
                                                   process::describe_process(pid)));
    }
  }
}

}  // namespace gcr::preflight

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "migrate-agent/host/free_vram.h"
#include "migrate-agent/preflight/comparison.h"

namespace gcr::agent {
namespace {

using preflight::Findings;

std::vector<mover::MappableGpu> mappable(const proto::HostFacts& host) {
  std::vector<mover::MappableGpu> gpus;
  for (const proto::Gpu& gpu : host.gpus()) {
    gpus.push_back({to_uuid(gpu.uuid()), gpu.name(), gpu.total_bytes(), gpu.allowed(), 0});
  }
  return gpus;
}

/// This host's GPUs. Where processes may be placed on several, their free VRAM decides.
std::vector<mover::MappableGpu> places(const proto::HostFacts& here,
                                       std::shared_ptr<const device::Driver> driver) {
  std::vector<mover::MappableGpu> gpus = mappable(here);
  if (std::ranges::count(gpus, true, &mover::MappableGpu::chosen) < 2) return gpus;
  host::FreeVram free_vram(std::move(driver));
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

/// Without prefill the VRAM only has to be there in principle: it may be free by then.
Result<std::uint64_t> usable_vram(const proto::Gpu& gpu, bool no_prefill,
                                  mover::IncomingVram& vram) {
  if (!no_prefill) return vram.free_bytes(to_uuid(gpu.uuid()));
  return gpu.total_bytes();
}

void check_vram(const proto::Gpu& gpu, std::uint64_t bytes, bool no_prefill,
                mover::IncomingVram& vram, Findings& findings) {
  const auto free = usable_vram(gpu, no_prefill, vram);
  if (!free) {
    findings.add("gpu-unusable", free.error().message());
  } else if (*free < bytes + kContextReserveBytes) {
    findings.add(
        "vram-too-small",
        fmt::format("GPU-{} has {} of VRAM{}; {} for buffers and {} for the process's "
                    "context are needed",
                    to_uuid(gpu.uuid()).to_string(), format_bytes(*free), no_prefill ? "" : " free",
                    format_bytes(bytes), format_bytes(kContextReserveBytes)));
  }
}

std::vector<device::GpuPair> ordered(const proto::PreflightRequest& request) {
  std::vector<device::GpuPair> pairs;
  for (const proto::GpuPair& pair : request.device_map()) {
    pairs.push_back({to_uuid(pair.source_uuid()), to_uuid(pair.destination_uuid())});
  }
  return pairs;
}

/// Bytes of buffers, and of what the driver brings back, by the GPU that they would go to.
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

}  // namespace

std::vector<device::GpuPair> map_gpus(const proto::PreflightRequest& request,
                                      const proto::HostFacts& here, mover::IncomingVram& vram,
                                      Findings& findings) {
  std::vector<mover::MappableGpu> source = mappable(request.host());
  std::set<Uuid> used;
  for (const proto::Buffer& buffer : request.buffers()) used.insert(to_uuid(buffer.gpu_uuid()));
  for (const proto::GpuUse& use : request.driver_vram()) used.insert(to_uuid(use.uuid()));
  for (mover::MappableGpu& gpu : source) gpu.chosen = used.erase(gpu.uuid) != 0;
  for (const Uuid& gpu : used) {
    findings.add("gpu-unknown", fmt::format("the process has buffers on GPU-{}, which the source "
                                            "does not name among its GPUs",
                                            gpu.to_string()));
  }
  auto map = mover::map_gpus(source, places(here, vram.driver()), ordered(request));
  if (!map) {
    findings.add("gpu-map", map.error().message());
    return {};
  }
  for (const auto& [uuid, bytes] : wanted_vram(request, *map)) {
    const proto::Gpu* gpu = find_gpu(here, uuid);
    if (gpu == nullptr) continue;  // the map has this host's GPUs alone
    check_gpu(*gpu, findings);
    check_vram(*gpu, bytes, request.no_prefill(), vram, findings);
  }
  return std::move(*map);
}

}  // namespace gcr::agent

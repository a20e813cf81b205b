#include "migrate-agent/migration/suspend/places.h"

#include <fmt/format.h>

#include <algorithm>

#include "migrate-agent/preflight/compare/host_facts.h"
#include "migrate-agent/preflight/inventory/vram.h"
#include "src/base/units.h"

namespace gcr::migration {
namespace {

using Needs = std::map<Uuid, std::uint64_t>;

bool has_room(const Place& place, std::uint64_t bytes) {
  return place.free_bytes >= bytes + preflight::kContextReserveBytes;
}

/// Pairs the GPUs. If `least_bytes` is not 0, only GPUs with so much free VRAM are offered.
Result<std::vector<device::GpuPair>> pair(const std::vector<mover::MappableGpu>& from,
                                          const std::vector<Place>& host,
                                          const std::vector<device::GpuPair>& ordered,
                                          std::uint64_t least_bytes) {
  std::vector<mover::MappableGpu> to;
  for (const Place& place : host) {
    if (place.gpu.vendor != device::Vendor::kNvidia) continue;
    mover::MappableGpu gpu{
        .uuid = place.gpu.uuid, .name = place.gpu.name, .total_bytes = place.gpu.total_bytes};
    gpu.chosen = place.allowed && (least_bytes == 0 || has_room(place, least_bytes));
    gpu.free_bytes = place.free_bytes;
    to.push_back(gpu);
  }
  return mover::map_gpus(from, to, ordered);
}

Status check_room(const std::vector<Place>& host, const Needs& needs,
                  const std::vector<device::GpuPair>& pairs) {
  for (const device::GpuPair& pair : pairs) {
    const auto need = needs.find(pair.from);
    if (need == needs.end()) continue;
    const auto place = std::ranges::find_if(
        host, [&](const Place& candidate) { return candidate.gpu.uuid == pair.to; });
    if (has_room(*place, need->second)) continue;
    return Error(
        Code::kResourceExhausted,
        fmt::format("{} has {} of VRAM free; {} for buffers and {} for the process's "
                    "context are needed",
                    gpu_name(pair.to), format_bytes(place->free_bytes), format_bytes(need->second),
                    format_bytes(preflight::kContextReserveBytes)));
  }
  return {};
}

}  // namespace

Result<std::vector<device::GpuPair>> choose_places(std::vector<mover::MappableGpu> from,
                                                   const std::vector<Place>& host,
                                                   const Needs& needs,
                                                   const std::vector<device::GpuPair>& ordered) {
  for (mover::MappableGpu& gpu : from) gpu.chosen = needs.contains(gpu.uuid);
  GCR_ASSIGN(auto pairs, pair(from, host, ordered, 0));
  const Status room = check_room(host, needs, pairs);
  if (room) return pairs;
  std::uint64_t most = 0;
  for (const auto& [gpu, bytes] : needs) most = std::max(most, bytes);
  auto others = pair(from, host, ordered, most);
  if (others && check_room(host, needs, *others)) return others;
  return room.error();
}

Result<std::vector<Place>> find_places(const std::shared_ptr<const device::Driver>& driver,
                                       const worker::Config& config) {
  inventory::FreeVram free_vram(driver, config.sysfs);
  std::vector<Place> places;
  for (const device::GpuInfo& gpu : driver->gpus()) {
    GCR_ASSIGN(const std::uint64_t free, free_vram.of(gpu.uuid));
    places.push_back({gpu, config.allows(gpu.uuid), free});
  }
  return places;
}

}  // namespace gcr::migration

#include "migrate-agent/mover/gpu_map.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/units.h"

namespace gcr::mover {
namespace {

/// The best GPU that is not taken yet: the same one, else the first of those that fit with most
/// VRAM free.
const MappableGpu* pick(const MappableGpu& wanted, const std::vector<MappableGpu>& candidates,
                        const std::set<Uuid>& taken) {
  const auto fits = [&](const MappableGpu& gpu) {
    if (taken.contains(gpu.uuid)) return false;
    if (!wanted.chosen) return true;
    return gpu.chosen && gpu.name == wanted.name && gpu.total_bytes >= wanted.total_bytes;
  };
  const MappableGpu* best = nullptr;
  for (const MappableGpu& gpu : candidates) {
    if (!fits(gpu)) continue;
    if (gpu.uuid == wanted.uuid) return &gpu;
    if (best == nullptr || (wanted.chosen && gpu.free_bytes > best->free_bytes)) best = &gpu;
  }
  return best;
}

}  // namespace

Result<std::vector<device::GpuPair>> map_gpus(const std::vector<MappableGpu>& source,
                                              const std::vector<MappableGpu>& destination) {
  std::vector<MappableGpu> ordered = source;
  std::stable_partition(ordered.begin(), ordered.end(),
                        [](const MappableGpu& gpu) { return gpu.chosen; });
  std::vector<device::GpuPair> pairs;
  std::set<Uuid> taken;
  for (const MappableGpu& gpu : ordered) {
    const MappableGpu* place = pick(gpu, destination, taken);
    if (place == nullptr && gpu.chosen) {
      return Error(Code::kRefused,
                   fmt::format("the destination has no free GPU for GPU-{} ({}, {})",
                               gpu.uuid.to_string(), gpu.name, format_bytes(gpu.total_bytes)));
    }
    if (place == nullptr) {
      return Error(Code::kRefused,
                   fmt::format("the destination has {} GPUs and the source {}: the driver can only "
                               "restore where every GPU of the source has a counterpart",
                               destination.size(), source.size()));
    }
    taken.insert(place->uuid);
    pairs.push_back({gpu.uuid, place->uuid});
  }
  return pairs;
}

}  // namespace gcr::mover

// Pairs that the operator ordered are checked and taken first. Then each chosen GPU of the source
// takes the best one that is left, then the unchosen ones, and at the end the hidden ones take
// what remains. No pair has a GPU that the process cannot open at the destination.
#include "migrate-agent/gpu/mover/gpu_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "src/base/units.h"

namespace gcr::mover {
namespace {

bool fits(const MappableGpu& wanted, const MappableGpu& place) {
  if (wanted.vendor != place.vendor || place.hidden) return false;
  if (!wanted.chosen && wanted.vendor == device::Vendor::kNvidia) return true;
  return place.chosen && place.name == wanted.name && place.total_bytes >= wanted.total_bytes;
}

/// The best GPU that is not taken yet: one that processes may be placed on, if the process can open
/// the wanted one; the same one; the first of those with most VRAM free.
const MappableGpu* pick(const MappableGpu& wanted, const std::vector<MappableGpu>& candidates,
                        const std::set<Uuid>& taken) {
  const auto rank = [&](const MappableGpu& gpu) {
    return std::tuple(gpu.chosen && !wanted.hidden, gpu.uuid == wanted.uuid,
                      wanted.chosen ? gpu.free_bytes : 0);
  };
  const MappableGpu* best = nullptr;
  for (const MappableGpu& gpu : candidates) {
    if (taken.contains(gpu.uuid) || !fits(wanted, gpu)) continue;
    if (best == nullptr || rank(gpu) > rank(*best)) best = &gpu;
  }
  return best;
}

/// Why an ordered pair is impossible; empty if it is possible.
std::string misfit(const device::GpuPair& pair, const std::vector<MappableGpu>& source,
                   const std::vector<MappableGpu>& destination) {
  const auto from = std::ranges::find(source, pair.from, &MappableGpu::uuid);
  const auto to = std::ranges::find(destination, pair.to, &MappableGpu::uuid);
  if (from == source.end()) return "the source has no such GPU as the first";
  if (to == destination.end()) return "the destination has no such GPU as the second";
  if (fits(*from, *to)) return "";
  if (!to->chosen) return "the destination's agent does not place processes on the second";
  return fmt::format("the first is {} with {}, the second {} with {}", from->name,
                     format_bytes(from->total_bytes), to->name, format_bytes(to->total_bytes));
}

/// The pairs that were ordered.
Result<std::vector<device::GpuPair>> follow(const std::vector<device::GpuPair>& ordered,
                                            const std::vector<MappableGpu>& source,
                                            const std::vector<MappableGpu>& destination) {
  std::set<Uuid> from;
  std::set<Uuid> to;
  for (const device::GpuPair& pair : ordered) {
    std::string wrong = misfit(pair, source, destination);
    if (!from.insert(pair.from).second || !to.insert(pair.to).second) wrong = "one is named twice";
    if (wrong.empty()) continue;
    return Error(Code::kRefused, fmt::format("{}={} was ordered: {}", gpu_name(pair.from),
                                             gpu_name(pair.to), wrong));
  }
  return ordered;
}

}  // namespace

std::vector<device::GpuPair> pairs_of(
    const google::protobuf::RepeatedPtrField<proto::GpuPair>& message) {
  std::vector<device::GpuPair> pairs;
  for (const proto::GpuPair& pair : message) {
    pairs.push_back({to_uuid(pair.source_uuid()), to_uuid(pair.destination_uuid())});
  }
  return pairs;
}

Result<std::vector<device::GpuPair>> map_gpus(const std::vector<MappableGpu>& source,
                                              const std::vector<MappableGpu>& destination,
                                              const std::vector<device::GpuPair>& ordered) {
  GCR_ASSIGN(std::vector<device::GpuPair> pairs, follow(ordered, source, destination));
  std::set<Uuid> taken;
  for (const device::GpuPair& pair : pairs) taken.insert(pair.to);
  std::vector<MappableGpu> rest = source;
  std::erase_if(rest, [&](const MappableGpu& gpu) {
    return std::ranges::count(ordered, gpu.uuid, &device::GpuPair::from) > 0;
  });
  std::ranges::stable_sort(
      rest, {}, [](const MappableGpu& gpu) { return std::pair(!gpu.chosen, gpu.hidden); });
  for (const MappableGpu& gpu : rest) {
    const MappableGpu* place = pick(gpu, destination, taken);
    if (place == nullptr && gpu.hidden) continue;
    if (place == nullptr && (gpu.chosen || gpu.vendor == device::Vendor::kAmd)) {
      return Error(Code::kRefused,
                   fmt::format("the destination has no free GPU for {} ({}, {})",
                               gpu_name(gpu.uuid), gpu.name, format_bytes(gpu.total_bytes)));
    }
    if (place == nullptr) {
      const auto number = [&](const std::vector<MappableGpu>& gpus) {
        return std::ranges::count_if(
            gpus, [&](const MappableGpu& one) { return one.vendor == gpu.vendor && !one.hidden; });
      };
      return Error(Code::kRefused,
                   fmt::format("the process could open {} GPUs at the source, and can open {} at "
                               "the destination: the driver only restores it where each of them "
                               "has a counterpart",
                               number(source), number(destination)));
    }
    taken.insert(place->uuid);
    pairs.push_back({gpu.uuid, place->uuid});
  }
  return pairs;
}

}  // namespace gcr::mover

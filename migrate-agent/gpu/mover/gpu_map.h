// Decides which GPU of the destination replaces which GPU of the source.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "migrate-agent/gpu/device/device.h"
#include "proto/control.pb.h"
#include "src/base/result.h"
#include "src/base/uuid.h"

namespace gcr::mover {

/// A GPU as one side of the map sees it.
struct MappableGpu {
  Uuid uuid;
  std::string name;
  std::uint64_t total_bytes = 0;
  bool chosen = false;  ///< source: the process uses it; destination: processes may be placed on it
  bool hidden = false;  ///< the process cannot open it; at the source it needs no pair, at the
                        ///< destination it is in none
  std::uint64_t free_bytes = 0;  ///< destination: of those that fit, the one with most is chosen
  device::Vendor vendor = device::Vendor::kNvidia;
};

/// The pairs in a message; bytes that are no identifier of a GPU become zeros.
std::vector<device::GpuPair> pairs_of(
    const google::protobuf::RepeatedPtrField<proto::GpuPair>& message);

/// Pairs every GPU of the source with a different one of the destination and the same vendor, since
/// NVIDIA's driver requires pairs for every GPU that the process can open. Chosen GPUs, and all AMD
/// GPUs, are paired with chosen ones of the same model and at least the same memory: as `ordered`
/// says, else with the same GPU where possible, else with the one that has most VRAM free, else in
/// order. Chosen GPUs come first in the result, hidden ones last. kRefused says what is missing,
/// or why the order cannot be followed.
Result<std::vector<device::GpuPair>> map_gpus(const std::vector<MappableGpu>& source,
                                              const std::vector<MappableGpu>& destination,
                                              const std::vector<device::GpuPair>& ordered = {});

}  // namespace gcr::mover

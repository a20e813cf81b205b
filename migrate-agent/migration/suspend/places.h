// Which GPUs of this host a suspended job returns to.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "migrate-agent/gpu/device/device.h"
#include "migrate-agent/gpu/mover/gpu_map.h"
#include "migrate-agent/worker/config/config.h"
#include "src/base/result.h"

namespace gcr::migration {

/// A GPU of this host, as it is now.
struct Place {
  device::GpuInfo gpu;
  bool allowed = false;  ///< this agent may place processes on it
  std::uint64_t free_bytes = 0;
};

/// Pairs for all GPUs in `from`, which are those of the host where the job was suspended: as
/// `ordered` says, else each to itself if it is in `host` and there is room for `needs` (bytes of
/// buffers by GPU), else to others with room. kRefused if the order cannot be followed;
/// kResourceExhausted, with the figures, if there is no room. No input or output.
Result<std::vector<device::GpuPair>> choose_places(std::vector<mover::MappableGpu> from,
                                                   const std::vector<Place>& host,
                                                   const std::map<Uuid, std::uint64_t>& needs,
                                                   const std::vector<device::GpuPair>& ordered);

/// This host's, now. Blocks.
Result<std::vector<Place>> find_places(const std::shared_ptr<const device::Driver>& driver,
                                       const worker::Config& config);

}  // namespace gcr::migration

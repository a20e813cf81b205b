// Chooses the GPUs of this host on which a suspended job resumes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "migrate-agent/gpu/device/device.h"
#include "migrate-agent/gpu/mover/gpu_map.h"
#include "migrate-agent/worker/config/config.h"
#include "src/base/result.h"

namespace gcr::migration {

/// The current state of a GPU of this host.
struct Place {
  device::GpuInfo gpu;
  bool allowed = false;  ///< this agent may place processes on it
  std::uint64_t free_bytes = 0;
};

/// Gives a pair for each GPU in `from`, the GPUs of the host where the job was suspended. With an
/// order, as `ordered` says. Otherwise each GPU maps to itself if `host` has it and it has enough
/// free VRAM for `needs` (bytes of buffers by GPU), else to another GPU with enough. kRefused if
/// the order cannot be followed; kResourceExhausted, with the sizes, if no GPU has enough. Does no
/// input or output.
Result<std::vector<device::GpuPair>> choose_places(std::vector<mover::MappableGpu> from,
                                                   const std::vector<Place>& host,
                                                   const std::map<Uuid, std::uint64_t>& needs,
                                                   const std::vector<device::GpuPair>& ordered);

/// The current state of this host's GPUs. Blocks.
Result<std::vector<Place>> find_places(const std::shared_ptr<const device::Driver>& driver,
                                       const worker::Config& config);

}  // namespace gcr::migration

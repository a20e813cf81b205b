// What a host offers, and whether a process fits on it: the figures that preflight compares.
#pragma once

#include <memory>
#include <vector>

#include "migrate-agent/daemon/config.h"
#include "migrate-agent/mover/control_checkpoint.h"
#include "migrate-agent/mover/incoming_vram.h"
#include "proto/control.pb.h"

namespace gcr::agent {

/// What must be free on a GPU beside the buffers: the context that the restored process brings back
/// (measured: 529 MiB on an H200) and some slack, because a restore that runs out of VRAM may not
/// be repeatable.
inline constexpr std::uint64_t kContextReserveBytes = 640 * kMiB;

/// Facts of this host. Free VRAM is left out: reading it needs a context.
proto::HostFacts host_facts(const Config& config, const mover::CudaDriver& driver);

Uuid to_uuid(const std::string& bytes);
std::string to_bytes(const Uuid& uuid);

/// The outcome of the destination's look at a request.
struct Fit {
  std::vector<proto::Blocker> blockers;
  std::vector<mover::GpuPair> gpu_map;  ///< empty where it could not be made
};

/// Everything at this host that stands in the way of the process described by `request`.
/// Creates contexts on the GPUs that the process would go to.
Fit fit(const proto::PreflightRequest& request, const proto::HostFacts& here, const Config& config,
        mover::IncomingVram& vram);

}  // namespace gcr::agent

// What a host has that a migration needs: gathered on both sides, sent to the other, and checked
// for problems that do not depend on the other.
#pragma once

#include <memory>
#include <string>

#include "migrate-agent/base/findings/catalogue.h"
#include "migrate-agent/gpu/device/device.h"
#include "migrate-agent/gpu/device/hip/topology.h"
#include "migrate-agent/worker/config/config.h"
#include "proto/control.pb.h"
#include "src/base/units.h"

namespace gcr::preflight {

/// What must be free on a GPU beside the buffers: the context that the restored process brings back
/// (measured: 529 MiB on an H200) and some slack, because a restore that runs out of VRAM may not
/// be repeatable. As much main memory takes what the driver's checkpoint brings out of one GPU.
inline constexpr std::uint64_t kContextReserveBytes = 640 * kMiB;

struct Survey {
  proto::HostFacts facts;                        ///< without free VRAM: reading it needs a context
  std::shared_ptr<const device::Driver> driver;  ///< none if it cannot be used
  device::hip::Topology topology;                ///< of AMD's GPUs; empty if it has none
};

/// Examines this host, as far as it can. Starts CRIU several times, in parallel.
/// Findings: "kernel-features", "mps", "no-driver", "driver-too-old", "criu-missing",
/// "criu-too-old", "criu-check". Blocks.
Survey survey(const worker::Config& config, findings::Findings& findings);

/// Kernel functions that the agent or the door needs and that are missing.
std::string missing_kernel_features();

/// "state-dir-full" if the directory of journals has less room than this.
inline constexpr std::uint64_t kJournalRoomBytes = kMiB;
void check_room(const worker::Config& config, findings::Findings& findings);

/// "in-migration" or "too-many-migrations" if that is what the daemon has answered.
void note_room(const Status& answer, findings::Findings& findings);

/// Release and model of NVIDIA's driver as text, from /proc/driver/nvidia/version; empty if it is
/// none.
std::string driver_release(const std::string& version_text);

/// "mig", "compute-mode", and check_amd_gpu(): of a GPU of `host` that the process uses, or would
/// use.
void check_gpu(const proto::Gpu& gpu, const proto::HostFacts& host, findings::Findings& findings);

}  // namespace gcr::preflight

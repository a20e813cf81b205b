// The facts of a host that a migration needs: gathered on both sides, sent to the other side, and
// checked for problems that do not depend on it.
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

/// VRAM that must be free on a GPU in addition to the buffers: the context of the restored process
/// (measured: 529 MiB on an H200) and some reserve, because a restore that runs out of VRAM may not
/// be repeatable. The driver's checkpoint moves about as much from one GPU into main memory.
inline constexpr std::uint64_t kContextReserveBytes = 640 * kMiB;

struct Survey {
  proto::HostFacts facts;                        ///< without free VRAM: reading it needs a context
  std::shared_ptr<const device::Driver> driver;  ///< null if it cannot be used
  device::hip::Topology topology;                ///< of AMD GPUs; empty if the host has none
};

/// Examines this host as far as possible. Starts CRIU several times, in parallel. Adds
/// "kernel-features", "no-freezer", "mps", "no-driver", "driver-too-old", "criu-missing",
/// "criu-too-old", "criu-check". Blocks.
Survey survey(const worker::Config& config, findings::Findings& findings);

/// Returns the names of kernel functions that the agent or the door needs and that are missing.
std::string missing_kernel_features();

/// Space that a journal needs.
inline constexpr std::uint64_t kJournalRoomBytes = kMiB;
void check_disk_space(const worker::Config& config, findings::Findings& findings);

/// Adds "in-migration" or "too-many-migrations" if the daemon has refused for that reason.
void add_admission_finding(const Status& answer, findings::Findings& findings);

/// Returns the release of the NVIDIA driver from the text of /proc/driver/nvidia/version; empty if
/// there is none.
std::string driver_release(const std::string& version_text);

/// Checks a GPU of `host` that the process uses or would use. Adds "mig", "compute-mode" and the
/// findings of check_amd_gpu().
void check_gpu(const proto::Gpu& gpu, const proto::HostFacts& host, findings::Findings& findings);

}  // namespace gcr::preflight

// Preflight of AMD GPUs (docs/hip.md): properties that both hosts must have alike, and state that
// CRIU's plugin and KFD, the compute part of the kernel driver, cannot move.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "migrate-agent/base/findings/catalogue.h"
#include "migrate-agent/gpu/device/hip/topology.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "proto/control.pb.h"

namespace gcr::preflight {

/// Fills `gpu` with the GPU's properties from sysfs, for the other host; if sysfs has none, records
/// only that it is an AMD GPU.
void describe_amd_gpu(const device::hip::Topology& topology, const device::GpuInfo& info,
                      proto::Gpu& gpu);

/// Checks a GPU of `host` that the process uses or would use. Adds "amd-unknown", "amd-partitions",
/// "amd-architecture", "amd-dies", "amd-waves", "amd-no-vram".
void check_amd_gpu(const proto::Gpu& gpu, const proto::HostFacts& host,
                   findings::Findings& findings);

/// Checks that GPU `to` can replace GPU `from`. Adds "amd-partition-mode", "amd-firmware",
/// "amd-properties".
void compare_amd_gpus(const proto::Gpu& from, const proto::Gpu& to, findings::Findings& findings);

/// Adds "amd-xnack" if the process retries page faults and `to` cannot.
void compare_xnack(const proto::ProcessFacts& process, const proto::Gpu& from, const proto::Gpu& to,
                   findings::Findings& findings);

/// Formats a GPU for messages: "GPU-7cf529dea4b33bad (AMD Instinct MI300X)".
std::string describe_gpu(const proto::Gpu& gpu);

/// A process's files of the AMD driver, from /proc.
struct AmdFiles {
  std::vector<procfs::DescriptorLink> descriptors;
  std::string maps;  ///< /proc/PID/maps

  bool any() const;
};
AmdFiles amd_files_of(pid_t pid);

/// Adds "amd-render-only", "amd-render-order", "amd-mapping".
void check_amd_files(const AmdFiles& files, findings::Findings& findings);

/// Adds "amd-render-nodes" if the process with this root directory lacks the node of a GPU.
void check_render_nodes(const std::filesystem::path& root, const device::hip::Topology& topology,
                        findings::Findings& findings);

/// Checks KFD's state of a process that has /dev/kfd open; `pid` is of the host's first PID
/// namespace. Adds "amd-queue", "amd-inherited".
void check_kfd_process(pid_t pid, const std::filesystem::path& sysfs, findings::Findings& findings);

/// Runs the checks of processes for all `pids` that have files of the AMD driver.
void check_amd_processes(const std::vector<pid_t>& pids, const device::hip::Topology& topology,
                         const std::filesystem::path& sysfs, findings::Findings& findings);

}  // namespace gcr::preflight

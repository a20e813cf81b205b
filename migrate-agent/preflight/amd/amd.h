// What preflight finds of AMD's GPUs (docs/hip.md): what two hosts must have alike, and what CRIU's
// plugin and KFD, the compute part of the kernel's driver, cannot move.
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

/// What sysfs says of a GPU, for the other host; nothing but that it is AMD's if it says nothing.
void describe_amd_gpu(const device::hip::Topology& topology, const device::GpuInfo& info,
                      proto::Gpu& gpu);

/// "amd-unknown", "amd-partitions", "amd-architecture", "amd-dies", "amd-waves", "amd-no-vram": of
/// a GPU of `host` that the process uses, or would use.
void check_amd_gpu(const proto::Gpu& gpu, const proto::HostFacts& host,
                   findings::Findings& findings);

/// "amd-partition-mode", "amd-firmware", "amd-properties": of the GPU that takes the other's place.
void compare_amd_gpus(const proto::Gpu& from, const proto::Gpu& to, findings::Findings& findings);

/// "amd-xnack": if the process retries page faults, which `to` cannot.
void compare_xnack(const proto::ProcessFacts& process, const proto::Gpu& from, const proto::Gpu& to,
                   findings::Findings& findings);

/// "GPU-7cf529dea4b33bad (AMD Instinct MI300X)".
std::string describe_gpu(const proto::Gpu& gpu);

/// What a process has of AMD's driver, as /proc tells it.
struct AmdFiles {
  std::vector<procfs::DescriptorLink> descriptors;
  std::string maps;  ///< /proc/PID/maps

  bool any() const;
};
AmdFiles amd_files_of(pid_t pid);

/// "amd-render-only", "amd-render-order", "amd-mapping".
void check_amd_files(const AmdFiles& files, findings::Findings& findings);

/// "amd-render-nodes": where the process, whose root directory this is, lacks the node of a GPU.
void check_render_nodes(const std::filesystem::path& root, const device::hip::Topology& topology,
                        findings::Findings& findings);

/// "amd-queue", "amd-inherited": what KFD says of a process that has /dev/kfd open. `pid` is of the
/// host's first PID namespace.
void check_kfd_process(pid_t pid, const std::filesystem::path& sysfs, findings::Findings& findings);

/// All of these for the processes that have files of AMD's driver.
void check_amd_processes(const std::vector<pid_t>& pids, const device::hip::Topology& topology,
                         const std::filesystem::path& sysfs, findings::Findings& findings);

}  // namespace gcr::preflight

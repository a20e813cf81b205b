// The destination's half of preflight: whether the process that a request describes fits on this
// host. Reads only; nothing is reserved.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "migrate-agent/criu/launch/plugin.h"
#include "migrate-agent/gpu/mover/gpu_map.h"
#include "migrate-agent/gpu/mover/incoming_vram.h"
#include "migrate-agent/preflight/compare/host_facts.h"
#include "migrate-agent/process/inspect/addresses.h"
#include "proto/control.pb.h"

namespace gcr::preflight {

/// Drivers, CRIU's view of the CPUs, clocks, software, main memory, hugepages, transport, Slurm.
void compare_hosts(const proto::PreflightRequest& request, const proto::HostFacts& here,
                   const worker::Config& config, findings::Findings& findings);

/// What its control groups limit at the source.
void compare_groups(const proto::ProcessFacts& process, findings::Findings& findings);

/// Ids, capabilities, limits, addresses and files of the process. `addresses` has those that its
/// sockets get, `coming` the names of files that come with the job.
void compare_process(const proto::ProcessFacts& process, const proto::HostFacts& here,
                     const process::Addresses& addresses, const std::set<std::string>& coming,
                     findings::Findings& findings);

/// The names of the files in memory that come with the job; adds "memory-file" for what prevents
/// it. kProtocol for what no agent would ask.
Result<std::set<std::string>> compare_memory_files(const proto::PreflightRequest& request,
                                                   findings::Findings& findings);

/// The destination GPU for each GPU of the source; empty if there is no mapping. Creates contexts
/// on the GPUs that the process would go to.
std::vector<device::GpuPair> map_gpus(const proto::PreflightRequest& request,
                                      const proto::HostFacts& here, const worker::Config& config,
                                      mover::IncomingVram& vram, findings::Findings& findings);

/// Bytes of buffers, and of what the driver brings back, by the GPU that they would go to.
std::map<Uuid, std::uint64_t> wanted_vram(const proto::PreflightRequest& request,
                                          const std::vector<device::GpuPair>& map);

/// "busy-gpu" for a job that uses several of NVIDIA's GPUs, one of which others use here as well: a
/// process that was restored is not interrupted for them within a kernel, so kernels that wait for
/// each other may wait for ever (measured: docs/benchmarks.md). The job itself is no company where
/// its source is the same machine. Says nothing where NVIDIA's library does not tell who uses a
/// GPU.
void look_for_company(const proto::PreflightRequest& request, bool same_machine,
                      const std::vector<device::GpuPair>& gpu_map, findings::Findings& findings);

/// CRIU's plugin for what the members use; null if they need none, or with the finding
/// "criu-plugin".
std::shared_ptr<const criu::Plugin> find_plugin(const proto::PreflightRequest& request,
                                                const proto::HostFacts& here,
                                                const worker::Config& config,
                                                findings::Findings& findings);

/// The same map of GPUs as CRIU's plugin names them, of those that it knows.
criu::PluginMap plugin_map(const proto::HostFacts& source, const proto::HostFacts& here,
                           const std::vector<device::GpuPair>& gpu_map);

/// "CAP_SYS_ADMIN, CAP_SYS_PTRACE": names of the capabilities in a set.
std::string capability_names(std::uint64_t set);

}  // namespace gcr::preflight

// The destination's part of preflight: checks whether the process that a request describes fits on
// this host. Reads only; nothing is reserved.
//
// Each function compares one aspect of the source's facts (proto::HostFacts, proto::ProcessFacts)
// with this host and adds a finding for each difference that prevents or affects the migration;
// none stops at the first. map_gpus() pairs the GPUs; the other functions about GPUs use its
// result.
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
#include "migrate-agent/process/inspect/sockets.h"
#include "proto/control.pb.h"

namespace gcr::preflight {

/// Compares drivers, CPU features (by CRIU), clocks, software, main memory, hugepages, transport
/// and Slurm.
void compare_hosts(const proto::PreflightRequest& request, const proto::HostFacts& here,
                   const worker::Config& config, findings::Findings& findings);

/// Checks that this host can apply the process's control group limits.
void compare_groups(const proto::ProcessFacts& process, findings::Findings& findings);

/// Compares ids, capabilities, labels, limits and hugepages of the process. The users of a
/// container are those of its image, and its label is compared by check_confinement().
void compare_process(const proto::ProcessFacts& process, const proto::HostFacts& here,
                     bool in_container, findings::Findings& findings);

/// Compares addresses and files of the process with those that the calling thread sees: for a
/// container, call it inside. `addresses` maps the addresses of its sockets, `coming` has the names
/// of files that move with the job.
void compare_place(const proto::ProcessFacts& process, const process::Addresses& addresses,
                   const std::set<std::string>& coming, findings::Findings& findings);

/// What the engine gave a container: the rights of its `init`.
Result<proto::Credentials> rights_of_container(pid_t init);

/// Whether a thread of a job from a container may run in a container with these rights: kRefused,
/// with the reason, if it has a right that the container does not give, or was not confined by what
/// confines the container.
Status check_confinement(const proto::Credentials& thread, const proto::Credentials& container);

/// The same for what a process has besides: its AppArmor profile and SELinux context, and those of
/// the container's `init`.
Status check_labels(const proto::ProcessFacts& process, pid_t init);

/// Returns the names of the memory files that move with the job; adds "memory-file" for each
/// obstacle. kProtocol for a request that no agent would send.
Result<std::set<std::string>> compare_memory_files(const proto::PreflightRequest& request,
                                                   findings::Findings& findings);

/// Returns the destination GPU for each GPU of the source; empty if there is no mapping. Creates
/// contexts on the GPUs that the process would use.
std::vector<device::GpuPair> map_gpus(const proto::PreflightRequest& request,
                                      const proto::HostFacts& here, const worker::Config& config,
                                      mover::IncomingVram& vram, findings::Findings& findings);

/// Returns the bytes of buffers and of memory that the driver restores, by the GPU that receives
/// them.
std::map<Uuid, std::uint64_t> wanted_vram(const proto::PreflightRequest& request,
                                          const std::vector<device::GpuPair>& map);

/// Adds "busy-gpu" for a job that uses several NVIDIA GPUs, one of which other processes use here:
/// within a kernel a restored process is not interrupted for them, so kernels that wait for each
/// other may wait for ever (measured: docs/benchmarks.md). If the source is the same machine, the
/// job itself does not count. Adds nothing if NVML does not list a GPU's processes.
void check_other_gpu_users(const proto::PreflightRequest& request, bool same_machine,
                           const std::vector<device::GpuPair>& gpu_map,
                           findings::Findings& findings);

/// Returns CRIU's plugin for the members; null if they need none, or with the finding
/// "criu-plugin".
std::shared_ptr<const criu::Plugin> find_plugin(const proto::PreflightRequest& request,
                                                const proto::HostFacts& here,
                                                const worker::Config& config,
                                                findings::Findings& findings);

/// Converts the map of GPUs to the ids of the CRIU plugin, for the GPUs that it knows.
criu::PluginMap plugin_map(const proto::HostFacts& source, const proto::HostFacts& here,
                           const std::vector<device::GpuPair>& gpu_map);

/// Returns the names of the capabilities in a set: "CAP_SYS_ADMIN, CAP_SYS_PTRACE".
std::string capability_names(std::uint64_t set);

}  // namespace gcr::preflight

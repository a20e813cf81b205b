#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "migrate-agent/preflight/amd/amd.h"

namespace gcr::preflight {
namespace {

using device::hip::Xnack;
using findings::Findings;

/// The first releases that save the queues of all dies of a GPU. AMD's driver release is one that
/// was reported to work; the kernel's patch came too late for 6.17.
constexpr std::array kReleaseForDies = {6, 16, 13};
constexpr std::array kKernelForDies = {6, 18, 0};

/// Properties of which the destination may have more; all others must be equal.
constexpr std::array<std::string_view, 2> kAtLeast = {"num_gws", "caches_count"};

std::array<int, 3> release_of(const std::string& text) {
  std::array<int, 3> release{};
  std::sscanf(text.c_str(), "%d.%d.%d", &release[0], &release[1], &release[2]);
  return release;
}

bool saves_all_dies(const proto::HostFacts& host) {
  if (host.amd_driver_release().empty()) return release_of(host.kernel()) >= kKernelForDies;
  return release_of(host.amd_driver_release()) >= kReleaseForDies;
}

std::string driver_of(const proto::HostFacts& host) {
  return host.amd_driver_release().empty() ? "of kernel " + host.kernel()
                                           : host.amd_driver_release();
}

std::string mode_of(const proto::AmdGpu& gpu) {
  if (gpu.compute_partitioning().empty() && gpu.memory_partitioning().empty()) return "undivided";
  return gpu.compute_partitioning() + "/" + gpu.memory_partitioning();
}

/// Returns whether processes on such a GPU can retry page faults.
bool can_have_xnack(Xnack xnack, int noretry) {
  return xnack == Xnack::kPerProcess || (xnack == Xnack::kWholeHost && noretry == 0);
}

}  // namespace

std::string describe_gpu(const proto::Gpu& gpu) {
  return fmt::format("{} ({})", gpu_name(to_uuid(gpu.uuid())), gpu.name());
}

void describe_amd_gpu(const device::hip::Topology& topology, const device::GpuInfo& info,
                      proto::Gpu& gpu) {
  proto::AmdGpu& amd = *gpu.mutable_amd();
  const device::hip::GpuNode* const node = device::hip::find_node(topology, info);
  if (node == nullptr) return;
  gpu.set_kfd_id(node->gpu_id);
  amd.set_architecture(node->architecture);
  amd.set_device_id(node->device_id);
  amd.set_vram_bytes(node->vram_bytes);
  amd.set_compute_partitioning(node->compute_partitioning);
  amd.set_memory_partitioning(node->memory_partitioning);
  amd.set_compute_dies(node->compute_dies);
  amd.set_firmware(node->firmware);
  amd.set_dma_firmware(node->dma_firmware);
  amd.set_xnack_by_process(node->xnack == Xnack::kPerProcess);
  amd.set_xnack_possible(can_have_xnack(node->xnack, topology.noretry));
  amd.mutable_properties()->insert(node->properties.begin(), node->properties.end());
}

void check_amd_gpu(const proto::Gpu& gpu, const proto::HostFacts& host,
                   findings::Findings& findings) {
  const std::string name = describe_gpu(gpu);
  const proto::AmdGpu& amd = gpu.amd();
  if (amd.architecture().empty()) {
    findings.add(findings::kAmdUnknown, fmt::format("sysfs does not describe {}", name));
    return;
  }
  const auto same = std::ranges::count(host.gpus(), gpu.uuid(), &proto::Gpu::uuid);
  if (same > 1) {
    findings.add(findings::kAmdPartitions,
                 fmt::format("{} partitions have the name {}", same, name));
  }
  if (amd.architecture().starts_with("gfx12")) {
    findings.add(findings::kAmdArchitecture, fmt::format("{} is a {}", name, amd.architecture()));
  }
  if (amd.compute_dies() > 1 && !saves_all_dies(host)) {
    findings.add(findings::kAmdDies, fmt::format("{} has {} compute dies, and the driver is {}",
                                                 name, amd.compute_dies(), driver_of(host)));
  }
  if (host.amd_keeps_no_waves()) {
    findings.add(findings::kAmdWaves, "amdgpu's parameter cwsr_enable is 0");
  }
  if (amd.vram_bytes() == 0) {
    findings.add(findings::kAmdNoVram, fmt::format("{} uses the host's memory", name));
  }
}

void compare_amd_gpus(const proto::Gpu& from, const proto::Gpu& to, findings::Findings& findings) {
  const proto::AmdGpu& there = from.amd();
  const proto::AmdGpu& here = to.amd();
  if (mode_of(there) != mode_of(here)) {
    findings.add(findings::kAmdPartitionMode,
                 fmt::format("{} is {}, the source's {} {}", describe_gpu(to), mode_of(here),
                             describe_gpu(from), mode_of(there)));
  }
  if (here.firmware() < there.firmware() || here.dma_firmware() < there.dma_firmware()) {
    findings.add(findings::kAmdFirmware,
                 fmt::format("{} has firmware {} and {} for DMA, the source's {} {} and {}",
                             describe_gpu(to), here.firmware(), here.dma_firmware(),
                             describe_gpu(from), there.firmware(), there.dma_firmware()));
  }
  for (const auto& [name, ours] : here.properties()) {
    const auto theirs = there.properties().find(name);
    const bool more_will_do = std::ranges::find(kAtLeast, name) != kAtLeast.end();
    if (theirs == there.properties().end() || ours == theirs->second) continue;
    if (more_will_do && ours > theirs->second) continue;
    findings.add(findings::kAmdProperties,
                 fmt::format("{} of {} is {}, that of the source's {} is {}", name,
                             describe_gpu(to), ours, describe_gpu(from), theirs->second));
  }
}

void compare_xnack(const proto::ProcessFacts& process, const proto::Gpu& from, const proto::Gpu& to,
                   findings::Findings& findings) {
  const bool on = from.amd().xnack_by_process() ? process.xnack() : from.amd().xnack_possible();
  if (!on || to.amd().xnack_possible()) return;
  findings.add(findings::kAmdXnack, fmt::format("process {} retries page faults, which {} cannot",
                                                process.pid_in_namespace(), describe_gpu(to)));
}

}  // namespace gcr::preflight

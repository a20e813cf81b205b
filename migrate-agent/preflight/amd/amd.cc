#include "migrate-agent/preflight/amd/amd.h"

#include <fmt/format.h>
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <sstream>
#include <string_view>

#include "migrate-agent/process/inspect/descriptors.h"

namespace gcr::preflight {
namespace {

namespace fs = std::filesystem;
using device::hip::Xnack;

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

constexpr std::string_view kRenderNode = "/dev/dri/renderD";
constexpr std::uint32_t kFirstRenderNode = 128;

/// A mapping of a part of a render node's file, which represents a buffer, in a process's memory.
struct BufferMapping {
  std::uint64_t from;
  std::uint64_t to;
  std::uint64_t offset;
  std::string node;

  /// Address at which the file's first byte would be: equal for the parts of one mapping.
  std::uint64_t base() const { return from - offset; }
  bool has_some_of(const BufferMapping& other) const {
    return node == other.node && offset < other.offset + (other.to - other.from) &&
           other.offset < offset + (to - from);
  }
};

/// The mappings of render nodes among the lines of /proc/PID/maps.
std::vector<BufferMapping> buffer_mappings(const std::string& maps) {
  std::vector<BufferMapping> found;
  std::istringstream lines(maps);
  for (std::string line; std::getline(lines, line);) {
    BufferMapping mapping{};
    char dash = 0;
    std::string rights, device, inode;
    std::istringstream fields(line);
    fields >> std::hex >> mapping.from >> dash >> mapping.to >> rights >> mapping.offset >>
        device >> inode >> mapping.node;
    const bool is_mapping = fields && dash == '-' && mapping.to > mapping.from;
    if (is_mapping && mapping.node.starts_with(kRenderNode)) found.push_back(std::move(mapping));
  }
  return found;
}

/// Checks that no buffer is mapped twice: CRIU's plugin finds a mapping's buffer by its address.
void check_mappings(std::vector<BufferMapping> mappings, findings::Findings& findings) {
  std::ranges::sort(mappings, {},
                    [](const BufferMapping& one) { return std::pair(one.node, one.offset); });
  for (std::size_t i = 1; i < mappings.size(); ++i) {
    const BufferMapping& one = mappings[i - 1];
    const BufferMapping& next = mappings[i];
    if (!one.has_some_of(next) || one.base() == next.base()) continue;
    findings.add(findings::kAmdMapping,
                 fmt::format("the same buffer of {} is mapped at {:#x} and {:#x}", one.node,
                             one.from, next.from));
    return;
  }
}

int lowest(const std::vector<procfs::DescriptorLink>& descriptors, std::string_view file) {
  int lowest = -1;
  for (const auto& [number, link] : descriptors) {
    if (link.starts_with(file) && (lowest < 0 || number < lowest)) lowest = number;
  }
  return lowest;
}

/// Returns whether two descriptors refer to one open file; false if the kernel does not say.
bool same_file(pid_t one, int of_one, pid_t other, int of_other) {
  return ::syscall(SYS_kcmp, one, other, KCMP_FILE, of_one, of_other) == 0;
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

bool AmdFiles::any() const {
  return lowest(descriptors, procfs::kComputeDevice) >= 0 ||
         lowest(descriptors, kRenderNode) >= 0 || !buffer_mappings(maps).empty();
}

AmdFiles amd_files_of(pid_t pid) {
  return {procfs::descriptor_links(pid), procfs::read_text(fmt::format("/proc/{}/maps", pid))};
}

void check_amd_files(const AmdFiles& files, findings::Findings& findings) {
  const int kfd = lowest(files.descriptors, procfs::kComputeDevice);
  const int node = lowest(files.descriptors, kRenderNode);
  if (kfd < 0 && node >= 0) {
    findings.add(findings::kAmdRenderOnly,
                 fmt::format("descriptor {} is a render node, and /dev/kfd is not open", node));
  } else if (node >= 0 && node < kfd) {
    findings.add(findings::kAmdRenderOrder,
                 fmt::format("descriptor {} is a render node, descriptor {} /dev/kfd", node, kfd));
  }
  check_mappings(buffer_mappings(files.maps), findings);
}

void check_render_nodes(const fs::path& root, const device::hip::Topology& topology,
                        findings::Findings& findings) {
  std::vector<std::uint32_t> nodes = {kFirstRenderNode};
  for (const auto& gpu : topology.gpus) nodes.push_back(gpu.render_minor);
  for (const std::uint32_t node : nodes) {
    const std::string name = fmt::format("{}{}", kRenderNode, node);
    std::error_code error;
    if (fs::exists(root / name.substr(1), error)) continue;
    findings.add(findings::kAmdRenderNodes,
                 fmt::format("the process's root directory has no {}", name));
  }
}

void check_kfd_process(pid_t pid, const fs::path& sysfs, findings::Findings& findings) {
  const auto queues = device::hip::queues_of(pid, sysfs);
  if (!queues) {
    findings.add(
        findings::kAmdInherited,
        fmt::format("process {} has an inherited /dev/kfd open, which KFD does not assign to it",
                    process::describe_process(pid)));
  } else if (std::ranges::count(*queues, device::hip::kQueueOfChosenEngine) > 0) {
    findings.add(findings::kAmdQueue,
                 fmt::format("process {} has a queue on a DMA engine that it chose itself",
                             process::describe_process(pid)));
  }
}

void check_amd_processes(const std::vector<pid_t>& pids, const device::hip::Topology& topology,
                         const fs::path& sysfs, findings::Findings& findings) {
  const bool first_namespace =
      procfs::namespace_link(::getpid(), "pid") == procfs::kFirstPidNamespace;
  std::vector<std::pair<pid_t, int>> users;  // with their descriptors of /dev/kfd
  for (const pid_t pid : pids) {
    const AmdFiles files = amd_files_of(pid);
    if (!files.any()) continue;
    check_amd_files(files, findings);
    check_render_nodes(fmt::format("/proc/{}/root", pid), topology, findings);
    const int kfd = lowest(files.descriptors, procfs::kComputeDevice);
    if (kfd < 0) continue;
    if (first_namespace) check_kfd_process(pid, sysfs, findings);
    for (const auto& [other, descriptor] : users) {
      if (!same_file(pid, kfd, other, descriptor)) continue;
      findings.add(findings::kAmdInherited,
                   fmt::format("process {} uses the /dev/kfd that process {} opened",
                               process::describe_process(pid), process::describe_process(other)));
    }
    users.emplace_back(pid, kfd);
  }
}

}  // namespace gcr::preflight

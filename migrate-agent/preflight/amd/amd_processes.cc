#include <fmt/format.h>
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string_view>

#include "migrate-agent/preflight/amd/amd.h"
#include "migrate-agent/process/inspect/descriptors.h"

namespace gcr::preflight {
namespace {

namespace fs = std::filesystem;
using findings::Findings;

constexpr std::string_view kKfd = "/dev/kfd";
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

std::optional<BufferMapping> parse_mapping(const std::string& line) {
  BufferMapping mapping{};
  char dash = 0;
  std::string rights, device, inode;
  std::istringstream fields(line);
  fields >> std::hex >> mapping.from >> dash >> mapping.to >> rights >> mapping.offset >> device >>
      inode >> mapping.node;
  if (!fields || dash != '-' || mapping.to <= mapping.from) return std::nullopt;
  if (!mapping.node.starts_with(kRenderNode)) return std::nullopt;
  return mapping;
}

std::vector<BufferMapping> buffer_mappings(const std::string& maps) {
  std::vector<BufferMapping> found;
  std::istringstream lines(maps);
  for (std::string line; std::getline(lines, line);) {
    if (auto mapping = parse_mapping(line)) found.push_back(std::move(*mapping));
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

bool AmdFiles::any() const {
  return lowest(descriptors, kKfd) >= 0 || lowest(descriptors, kRenderNode) >= 0 ||
         !buffer_mappings(maps).empty();
}

AmdFiles amd_files_of(pid_t pid) {
  return {procfs::descriptor_links(pid), procfs::read_text(fmt::format("/proc/{}/maps", pid))};
}

void check_amd_files(const AmdFiles& files, findings::Findings& findings) {
  const int kfd = lowest(files.descriptors, kKfd);
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
    const int kfd = lowest(files.descriptors, kKfd);
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

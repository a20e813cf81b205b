#include <fmt/format.h>
#include <unistd.h>

#include <set>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/preflight/compare/comparison.h"
#include "migrate-agent/preflight/inventory/nvml.h"
#include "migrate-agent/process/inspect/descriptors.h"
#include "migrate-agent/process/inspect/together.h"

namespace gcr::preflight {

void check_other_gpu_users(const proto::PreflightRequest& request, bool same_machine,
                           const std::vector<device::GpuPair>& gpu_map,
                           findings::Findings& findings) {
  const auto wanted = wanted_vram(request, gpu_map);
  if (wanted.size() < 2) return;
  if (procfs::namespace_link(::getpid(), "pid") != procfs::kFirstPidNamespace) return;
  const auto nvml = inventory::Nvml::load();
  if (!nvml) return;
  std::set<pid_t> members;
  if (same_machine) members.insert(request.pids().begin(), request.pids().end());
  for (const auto& [gpu, wanted_bytes] : wanted) {
    const auto users = nvml->used_by_process(gpu);
    if (!users) continue;
    for (const auto& [pid, bytes] : *users) {
      if (members.contains(pid) || process::is_agent_or_gone(pid)) continue;
      findings.add(findings::kBusyGpu, fmt::format("{} is used by process {}", gpu_name(gpu),
                                                   process::describe_process(pid)));
    }
  }
}

}  // namespace gcr::preflight

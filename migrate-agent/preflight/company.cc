#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

#include "migrate-agent/host/nvml.h"
#include "migrate-agent/preflight/comparison.h"
#include "migrate-agent/process/descriptors.h"
#include "migrate-agent/procfs/procfs.h"

namespace gcr::agent {
namespace {

/// The GPUs here that the job's own memory goes to.
std::set<Uuid> places_of(const proto::PreflightRequest& request,
                         const std::vector<device::GpuPair>& gpu_map) {
  std::set<Uuid> places;
  const auto add = [&](const Uuid& gpu) {
    const auto pair = std::ranges::find(gpu_map, gpu, &device::GpuPair::from);
    if (pair != gpu_map.end()) places.insert(pair->to);
  };
  for (const proto::Buffer& buffer : request.buffers()) {
    if (!buffer.has_host_node()) add(to_uuid(buffer.gpu_uuid()));
  }
  for (const proto::GpuUse& use : request.driver_vram()) add(to_uuid(use.uuid()));
  return places;
}

std::string program_of(const std::string& pid) {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/" + pid + "/exe", error).string();
}

}  // namespace

void look_for_company(const proto::PreflightRequest& request, bool same_machine,
                      const std::vector<device::GpuPair>& gpu_map, preflight::Findings& findings) {
  const std::set<Uuid> places = places_of(request, gpu_map);
  if (places.size() < 2) return;
  if (procfs::namespace_link(::getpid(), "pid") != procfs::kFirstPidNamespace) return;
  const auto nvml = host::Nvml::load();
  if (!nvml) return;
  std::set<pid_t> members;
  if (same_machine) members.insert(request.pids().begin(), request.pids().end());
  const std::string agent = program_of("self");
  for (const Uuid& gpu : places) {
    const auto users = nvml->used_by_process(gpu);
    if (!users) continue;
    for (const auto& [pid, bytes] : *users) {
      const std::string program = program_of(std::to_string(pid));
      if (members.contains(pid) || program.empty() || program == agent) continue;
      findings.add("busy-gpu", fmt::format("{} is used by process {} too", gpu_name(gpu),
                                           process::describe_process(pid)));
    }
  }
}

}  // namespace gcr::agent

#include "migrate-agent/host/used_vram.h"

#include <algorithm>
#include <optional>

#include "migrate-agent/host/free_vram.h"
#include "migrate-agent/host/nvml.h"

namespace gcr::host {
namespace {

using ByGpu = std::map<Uuid, std::uint64_t>;

/// Nothing unless the library tells of all GPUs, and knows the process.
std::optional<ByGpu> as_nvml_tells(pid_t pid, const device::Driver& driver) {
  const auto nvml = Nvml::load();
  if (!nvml) return std::nullopt;
  ByGpu used;
  for (const device::GpuInfo& gpu : driver.gpus()) {
    const auto processes = nvml->used_by_process(gpu.uuid);
    if (!processes) return std::nullopt;
    const auto found = processes->find(pid);
    if (found != processes->end()) used[gpu.uuid] = found->second;
  }
  if (used.empty()) return std::nullopt;
  return used;
}

}  // namespace

Result<ByGpu> used_vram(pid_t pid, const std::shared_ptr<const device::Driver>& driver) {
  if (auto told = as_nvml_tells(pid, *driver)) return *std::move(told);
  FreeVram free_vram(driver);
  ByGpu used;
  for (const device::GpuInfo& gpu : driver->gpus()) {
    GCR_ASSIGN(const std::uint64_t free, free_vram.of(gpu.uuid));
    if (free < gpu.total_bytes) used[gpu.uuid] = gpu.total_bytes - free;
  }
  return used;
}

}  // namespace gcr::host

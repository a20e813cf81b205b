#include "migrate-agent/preflight/inventory/used_vram.h"

#include <unistd.h>

#include <optional>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/preflight/inventory/free_vram.h"
#include "migrate-agent/preflight/inventory/nvml.h"
#include "src/base/units.h"

namespace gcr::inventory {
namespace {

using ByGpu = std::map<Uuid, std::uint64_t>;

/// No process has a context that takes less.
constexpr std::uint64_t kLeastContextBytes = 64 * kMiB;

/// What the process uses. Nothing unless the library tells it of all GPUs.
std::optional<ByGpu> used_by(pid_t pid, const Nvml& nvml, const device::Driver& driver) {
  if (procfs::namespace_link(::getpid(), "pid") != procfs::kFirstPidNamespace) return std::nullopt;
  ByGpu used;
  for (const device::GpuInfo& gpu : driver.gpus()) {
    if (gpu.vendor != device::Vendor::kNvidia) continue;
    const auto processes = nvml.used_by_process(gpu.uuid);
    if (!processes) return std::nullopt;
    const auto found = processes->find(pid);
    if (found != processes->end()) used[gpu.uuid] = found->second;
  }
  if (used.empty()) return std::nullopt;
  return used;
}

/// What all processes use, where there may be a context: on some GPU there is one. Nothing unless
/// the library tells that.
std::optional<ByGpu> used_by_all(const Nvml& nvml, const device::Driver& driver) {
  ByGpu used;
  for (const device::GpuInfo& gpu : driver.gpus()) {
    if (gpu.vendor != device::Vendor::kNvidia) continue;
    const auto bytes = nvml.used_bytes(gpu.uuid);
    if (!bytes) return std::nullopt;
    if (*bytes >= kLeastContextBytes) used[gpu.uuid] = *bytes;
  }
  if (used.empty()) return std::nullopt;
  return used;
}

}  // namespace

Result<ByGpu> used_vram(pid_t pid, const std::shared_ptr<const device::Driver>& driver) {
  if (const auto nvml = Nvml::load()) {
    if (auto told = used_by(pid, *nvml, *driver)) return *std::move(told);
    if (auto told = used_by_all(*nvml, *driver)) return *std::move(told);
  }
  FreeVram free_vram(driver, "/sys");
  ByGpu used;
  for (const device::GpuInfo& gpu : driver->gpus()) {
    if (gpu.vendor != device::Vendor::kNvidia) continue;
    GCR_ASSIGN(const std::uint64_t free, free_vram.of(gpu.uuid));
    if (free < gpu.total_bytes) used[gpu.uuid] = gpu.total_bytes - free;
  }
  return used;
}

}  // namespace gcr::inventory

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

/// No context takes less than this.
constexpr std::uint64_t kLeastContextBytes = 64 * kMiB;

/// Returns the VRAM of the process by GPU; none unless the library knows it on all GPUs.
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

/// Returns the VRAM that all processes use on each GPU that may have a context; at least one has.
/// None if the library does not know it.
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
    if (auto used = used_by(pid, *nvml, *driver)) return *std::move(used);
    if (auto used = used_by_all(*nvml, *driver)) return *std::move(used);
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

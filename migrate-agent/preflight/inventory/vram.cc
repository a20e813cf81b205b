#include "migrate-agent/preflight/inventory/vram.h"

#include <unistd.h>

#include <algorithm>

#include "migrate-agent/linux/procfs/procfs.h"
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

FreeVram::FreeVram(std::shared_ptr<const device::Driver> driver, std::filesystem::path sysfs)
    : nvml_(Nvml::load()), gpus_(std::move(driver)), sysfs_(std::move(sysfs)) {
  if (auto topology = device::hip::read_topology(sysfs_)) topology_ = *std::move(topology);
}

std::optional<std::uint64_t> FreeVram::without_context(const Uuid& gpu) const {
  if (nvml_) {
    if (const auto known = nvml_->free_bytes(gpu)) return known;
  }
  const auto& all = gpus_.driver()->gpus();
  const auto info = std::ranges::find(all, gpu, &device::GpuInfo::uuid);
  if (info == all.end() || info->vendor != device::Vendor::kAmd) return std::nullopt;
  const auto* const node = device::hip::find_node(topology_, *info);
  return node == nullptr ? std::nullopt : device::hip::free_vram(*node, sysfs_);
}

Result<std::uint64_t> FreeVram::of(const Uuid& gpu) {
  if (const auto known = without_context(gpu)) return *known;
  GCR_ASSIGN(const auto opened, gpus_.on(gpu));
  return opened->free_bytes();
}

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

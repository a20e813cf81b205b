#include "migrate-agent/preflight/inventory/free_vram.h"

#include <algorithm>

namespace gcr::inventory {
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

}  // namespace gcr::inventory

#include "migrate-agent/host/free_vram.h"

namespace gcr::host {

FreeVram::FreeVram(std::shared_ptr<const device::Driver> driver)
    : nvml_(Nvml::load()), gpus_(std::move(driver)) {}

Result<std::uint64_t> FreeVram::of(const Uuid& gpu) {
  if (nvml_) {
    if (const auto known = nvml_->free_bytes(gpu)) return *known;
  }
  GCR_ASSIGN(const auto known, gpus_.on(gpu));
  return known->free_bytes();
}

}  // namespace gcr::host

#include "migrate-agent/host/free_vram.h"

namespace gcr::host {

FreeVram::FreeVram(std::shared_ptr<const mover::CudaDriver> driver)
    : nvml_(Nvml::load()), contexts_(std::move(driver)) {}

Result<std::uint64_t> FreeVram::of(const Uuid& gpu) {
  if (nvml_) {
    if (const auto known = nvml_->free_bytes(gpu)) return *known;
  }
  GCR_ASSIGN(const auto context, contexts_.on(gpu));
  return context->free_bytes();
}

}  // namespace gcr::host

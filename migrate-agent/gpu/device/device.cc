#include "migrate-agent/gpu/device/device.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

namespace gcr::device {

Result<UniqueFd> Allocation::duplicate_descriptor() const {
  UniqueFd copy(::fcntl(descriptor_.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return Error::from_errno(errno, "cannot duplicate the descriptor of a buffer");
  return copy;
}

Result<std::shared_ptr<Gpu>> Gpus::on(const Uuid& uuid) {
  if (const auto found = gpus_.find(uuid); found != gpus_.end()) return found->second;
  const auto info = std::ranges::find(driver_->gpus(), uuid, &GpuInfo::uuid);
  if (info == driver_->gpus().end()) {
    return Error(Code::kNotFound, fmt::format("this host has no {}", gpu_name(uuid)));
  }
  GCR_ASSIGN(auto gpu, driver_->open(*info));
  gpus_.emplace(uuid, gpu);
  return gpu;
}

}  // namespace gcr::device

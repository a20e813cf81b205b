// The driver's checkpoint API, applied to another process.
#pragma once

#include <memory>

#include "migrate-agent/device/cuda/library.h"

namespace gcr::device::cuda {

class CudaControl final : public Control {
 public:
  CudaControl(std::shared_ptr<const Library> library, pid_t pid)
      : driver_(std::move(library)), pid_(pid) {}

  Result<State> state() const override;
  Status lock(std::chrono::milliseconds timeout) const override;
  Status checkpoint() const override;
  Status restore(const std::vector<GpuPair>& pairs) const override;
  Status unlock() const override;
  Result<pid_t> restore_thread() const override;

 private:
  const std::shared_ptr<const Library> driver_;
  const pid_t pid_;
};

}  // namespace gcr::device::cuda

#include "migrate-agent/device/cuda/driver.h"

#include "migrate-agent/device/cuda/control.h"
#include "migrate-agent/device/cuda/objects.h"

namespace gcr::device::cuda {
namespace {

class CudaDriver final : public Driver {
 public:
  explicit CudaDriver(std::shared_ptr<const Library> library) : library_(std::move(library)) {}

  int version() const override { return library_->version(); }
  const std::vector<GpuInfo>& gpus() const override { return library_->gpus(); }
  Result<std::shared_ptr<Gpu>> open(const GpuInfo& gpu) const override {
    return CudaGpu::open(library_, gpu);
  }
  std::unique_ptr<Control> control(pid_t pid) const override {
    return std::make_unique<CudaControl>(library_, pid);
  }

 private:
  const std::shared_ptr<const Library> library_;
};

}  // namespace

Result<std::shared_ptr<const Driver>> load() {
  GCR_ASSIGN(auto library, Library::load());
  return std::make_shared<const CudaDriver>(std::move(library));
}

}  // namespace gcr::device::cuda

// A GPU through the CUDA driver: everything is in its primary context, which this object holds.
#include <fmt/format.h>

#include <memory>

#include "migrate-agent/gpu/device/cuda/library.h"
#include "migrate-agent/gpu/digest/digest_kernel_ptx.h"

namespace gcr::device::cuda {
namespace {

class CudaCalls final : public CommonCalls<Library> {
 public:
  /// Takes over one reference to the GPU's primary context.
  CudaCalls(std::shared_ptr<const Library> library, int ordinal, CUdevice device, CUcontext context)
      : CommonCalls(std::move(library), ordinal, device), context_(context) {}
  ~CudaCalls() override { driver_->cuDevicePrimaryCtxRelease_v2(device_); }
  CudaCalls(const CudaCalls&) = delete;
  CudaCalls& operator=(const CudaCalls&) = delete;

  Status enter() const override {
    return driver_->check(driver_->cuCtxSetCurrent(context_), "cannot enter the agent's context");
  }

  /// Host and GPUs use the same address: addresses are unified in every 64-bit process on Linux
  /// (CUDA C++ Programming Guide, "Unified Virtual Address Space").
  Result<Address> address_of(std::byte* host) const override {
    return reinterpret_cast<Address>(host);
  }

  Result<Kernel> load_digest_kernel() const override {
    return load_kernel(digest::kDigestKernelPtx);
  }

 private:
  const CUcontext context_;
};

}  // namespace

Result<std::shared_ptr<Gpu>> Library::open(const GpuInfo& info) const {
  CUdevice device = 0;
  CUcontext context = nullptr;
  const std::string doing = fmt::format("cannot create a context on {}", gpu_name(info.uuid));
  GCR_TRY(check(device_get(&device, info.ordinal), doing));
  GCR_TRY(check(cuDevicePrimaryCtxRetain(&context, device), doing));
  return std::make_shared<Gpu>(
      info, std::make_unique<CudaCalls>(shared_from_this(), info.ordinal, device, context));
}

}  // namespace gcr::device::cuda

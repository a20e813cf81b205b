// A GPU through HIP: the calling thread's device is set before each call.
#include <memory>

#include "migrate-agent/gpu/device/hip/library.h"

namespace gcr::device::hip {
namespace {

class HipCalls final : public CommonCalls<Library> {
 public:
  HipCalls(std::shared_ptr<const Library> library, int ordinal)
      : CommonCalls(std::move(library), ordinal, ordinal) {}

  Status enter() const override {
    return driver_->check(driver_->hipSetDevice(ordinal_), "cannot choose the agent's GPU");
  }

  /// Registered memory may have another address on the GPU.
  Result<Address> address_of(std::byte* host) const override {
    void* address = nullptr;
    GCR_TRY(driver_->check(driver_->hipHostGetDevicePointer(&address, host, 0)));
    return reinterpret_cast<Address>(address);
  }

  Result<Kernel> load_digest_kernel() const override {
    GCR_ASSIGN(const char* const code, driver_->digest_code(ordinal_));
    return load_kernel(code);
  }
};

}  // namespace

Result<std::shared_ptr<Gpu>> Library::open(const GpuInfo& info) const {
  auto calls = std::make_unique<HipCalls>(shared_from_this(), info.ordinal);
  GCR_TRY(calls->enter());
  return std::make_shared<Gpu>(info, std::move(calls));
}

}  // namespace gcr::device::hip

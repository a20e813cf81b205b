#include "migrate-agent/gpu/device/cuda/library.h"

#include <fmt/format.h>

#include <string>

#include "migrate-agent/gpu/device/cuda/driver.h"
#include "migrate-agent/gpu/digest/digest_kernel_ptx.h"

namespace gcr::device::cuda {
namespace {

Code code_of(CUresult result) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return Code::kResourceExhausted;
    case CUDA_ERROR_INVALID_VALUE:
      return Code::kInvalidArgument;
    case CUDA_ERROR_NOT_SUPPORTED:
      return Code::kUnsupported;
    case CUDA_ERROR_NO_DEVICE:
      return Code::kUnavailable;
    case CUDA_ERROR_NOT_READY:
      return Code::kTimeout;
    case CUDA_ERROR_NOT_FOUND:
    case CUDA_ERROR_NOT_INITIALIZED:  // of a process that is asked about: cuInit was called here
      return Code::kNotFound;
    default:
      return Code::kInternal;
  }
}

/// A GPU through the CUDA driver: everything is in its primary context, which this object holds.
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

Result<std::shared_ptr<const Library>> Library::load() {
  std::shared_ptr<Library> driver(new Library);
  GCR_ASSIGN(driver->library_,
             LoadedLibrary::load("libcuda.so.1", "CUDA driver", "driver 570 or newer"));
  GCR_TRY(driver->resolve());
  GCR_TRY(driver->check(driver->init(0), "cannot initialise the CUDA driver"));
  int version = 0;
  GCR_TRY(driver->check(driver->driver_version(&version), "cannot read the CUDA driver's version"));
  GCR_ASSIGN(driver->gpus_, device::list_gpus(*driver, Vendor::kNvidia, version));
  return std::shared_ptr<const Library>(std::move(driver));
}

Status Library::resolve() {
#define GCR_COMMON_RESOLVE(name, cuda, hip, params) GCR_TRY(library_.resolve(#cuda, name));
#define GCR_CUDA_RESOLVE(name, params) GCR_TRY(library_.resolve(#name, name));
  GCR_COMMON_FUNCTIONS(GCR_COMMON_RESOLVE)
  GCR_CUDA_FUNCTIONS(GCR_CUDA_RESOLVE)
#undef GCR_CUDA_RESOLVE
#undef GCR_COMMON_RESOLVE
  return {};
}

Status Library::check(CUresult result) const {
  if (result == CUDA_SUCCESS) return {};
  const char* name = nullptr;
  const char* text = nullptr;
  cuGetErrorName(result, &name);
  cuGetErrorString(result, &text);
  return Error(code_of(result),
               fmt::format("{} ({})", name != nullptr ? name : "unknown CUDA error",
                           text != nullptr ? text : std::to_string(static_cast<int>(result))));
}

Result<std::shared_ptr<Gpu>> Library::open(const GpuInfo& info) const {
  CUdevice device = 0;
  CUcontext context = nullptr;
  const std::string doing = fmt::format("cannot create a context on {}", gpu_name(info.uuid));
  GCR_TRY(check(device_get(&device, info.ordinal), doing));
  GCR_TRY(check(cuDevicePrimaryCtxRetain(&context, device), doing));
  return std::make_shared<Gpu>(
      info, std::make_unique<CudaCalls>(shared_from_this(), info.ordinal, device, context));
}

Result<std::shared_ptr<const Driver>> load() { return Library::load(); }

}  // namespace gcr::device::cuda

#include "migrate-agent/gpu/device/cuda/library.h"

#include <fmt/format.h>

#include <string>

#include "migrate-agent/gpu/device/cuda/driver.h"

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

Result<std::shared_ptr<const Driver>> load() { return Library::load(); }

}  // namespace gcr::device::cuda

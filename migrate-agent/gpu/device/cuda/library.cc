#include "migrate-agent/gpu/device/cuda/library.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

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
  GCR_TRY(driver->check(driver->cuInit(0), "cannot initialise the CUDA driver"));
  GCR_TRY(driver->check(driver->cuDriverGetVersion(&driver->version_),
                        "cannot read the CUDA driver's version"));
  GCR_TRY(driver->list_gpus());
  return std::shared_ptr<const Library>(std::move(driver));
}

Status Library::resolve() {
#define GCR_CUDA_RESOLVE(name, params) GCR_TRY(library_.resolve(#name, name));
  GCR_CUDA_FUNCTIONS(GCR_CUDA_RESOLVE)
#undef GCR_CUDA_RESOLVE
  return {};
}

Status Library::list_gpus() {
  int count = 0;
  GCR_TRY(check(cuDeviceGetCount(&count), "cannot count the GPUs"));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    const std::string doing = fmt::format("cannot query GPU {}", ordinal);
    CUdevice device = 0;
    std::array<char, 128> name{};
    CUuuid uuid{};
    std::size_t total = 0;
    GCR_TRY(check(cuDeviceGet(&device, ordinal), doing));
    GCR_TRY(check(cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device), doing));
    GCR_TRY(check(cuDeviceGetUuid_v2(&uuid, device), doing));
    GCR_TRY(check(cuDeviceTotalMem_v2(&total, device), doing));
    int mode = 0;
    GCR_TRY(check(cuDeviceGetAttribute(&mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device), doing));
    GpuInfo gpu{.vendor = Vendor::kNvidia,
                .driver_version = version_,
                .ordinal = ordinal,
                .uuid = {},
                .name = name.data(),
                .total_bytes = total,
                .compute_mode = static_cast<std::uint32_t>(mode)};
    static_assert(sizeof(uuid.bytes) == sizeof(gpu.uuid.bytes));
    std::memcpy(gpu.uuid.bytes.data(), uuid.bytes, sizeof(uuid.bytes));
    gpus_.push_back(std::move(gpu));
  }
  return {};
}

Status Library::check(CUresult result, std::string_view doing) const {
  const Status checked = check(result);
  if (checked) return {};
  return checked.error().while_doing(doing);
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

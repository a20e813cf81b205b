#include "migrate-agent/gpu/device/hip/library.h"

#include <fmt/format.h>

#include <array>

#include "migrate-agent/gpu/device/hip/driver.h"
#include "migrate-agent/gpu/digest/digest_kernel_hip.h"

namespace gcr::device::hip {
namespace {

/// The first release with today's layout of the properties of memory that a descriptor can own.
constexpr int kOldestVersion = 50'300'000;

Code code_of(hipError_t result) {
  switch (result) {
    case hipErrorOutOfMemory:
      return Code::kResourceExhausted;
    case hipErrorInvalidValue:
      return Code::kInvalidArgument;
    case hipErrorNotSupported:
      return Code::kUnsupported;
    case hipErrorNoDevice:
    case hipErrorInvalidDevice:  // of hipInit() in old releases
      return Code::kUnavailable;
    case hipErrorNotReady:
      return Code::kTimeout;
    case hipErrorNotFound:
      return Code::kNotFound;
    default:
      return Code::kInternal;
  }
}

}  // namespace

Result<std::shared_ptr<const Library>> Library::load() {
  std::shared_ptr<Library> driver(new Library);
  Result<LoadedLibrary> library;
  for (const char* const release : {"7", "6", "5"}) {
    driver->release_ = release;
    library = LoadedLibrary::load("libamdhip64.so." + driver->release_, "HIP", "ROCm 5.3 or newer");
    if (library) break;
  }
  GCR_ASSIGN(driver->library_, std::move(library));
  GCR_TRY(driver->resolve());
  GCR_TRY(driver->check(driver->init(0), "cannot initialise HIP"));
  GCR_TRY(driver->check(driver->driver_version(&driver->version_), "cannot read HIP's version"));
  if (driver->version_ < kOldestVersion) {
    return Error(Code::kUnsupported, "this host's HIP is too old; ROCm 5.3 or newer is needed");
  }
  GCR_ASSIGN(driver->gpus_, device::list_gpus(*driver, Vendor::kAmd, driver->version_));
  GCR_TRY(driver->read_pci_addresses());
  return std::shared_ptr<const Library>(std::move(driver));
}

Status Library::resolve() {
#define GCR_COMMON_RESOLVE(name, cuda, hip, params) GCR_TRY(library_.resolve(#hip, name));
#define GCR_HIP_RESOLVE(name, params) GCR_TRY(library_.resolve(#name, name));
  GCR_COMMON_FUNCTIONS(GCR_COMMON_RESOLVE)
  GCR_HIP_FUNCTIONS(GCR_HIP_RESOLVE)
  GCR_HIP_RESOLVE(hipGetErrorName, )
#undef GCR_HIP_RESOLVE
#undef GCR_COMMON_RESOLVE
  return {};
}

/// Until ROCm 5 the compiler is in HIP's own library.
Status Library::resolve_compiler() {
  const bool is_inside = library_.find<void>("hiprtcCreateProgram") != nullptr;
  if (!is_inside && !compiler_) {
    GCR_ASSIGN(compiler_, LoadedLibrary::load("libhiprtc.so." + release_, "hipRTC"));
  }
  const LoadedLibrary& compiler = is_inside ? library_ : compiler_;
#define GCR_HIPRTC_RESOLVE(name, params) GCR_TRY(compiler.resolve(#name, name));
  GCR_HIPRTC_FUNCTIONS(GCR_HIPRTC_RESOLVE)
  GCR_HIPRTC_RESOLVE(hiprtcGetErrorString, )
#undef GCR_HIPRTC_RESOLVE
  return {};
}

Status Library::read_pci_addresses() {
  for (GpuInfo& gpu : gpus_) {
    std::array<char, 64> address{};
    GCR_TRY(check(
        hipDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()) - 1, gpu.ordinal),
        fmt::format("cannot query GPU {}", gpu.ordinal)));
    gpu.pci_address = address.data();
  }
  return {};
}

Status Library::check(hipError_t result) const {
  if (result == hipSuccess) return {};
  const char* const name = hipGetErrorName(result);
  return Error(code_of(result), name != nullptr ? name : "an unknown HIP error");
}

Status Library::check_compiler(hiprtcResult result, std::string_view doing) const {
  if (result == HIPRTC_SUCCESS) return {};
  return Error(Code::kInternal, fmt::format("{}: {}", doing, hiprtcGetErrorString(result)));
}

Result<const char*> Library::digest_code(int ordinal) const {
  const std::lock_guard lock(mutex_);
  std::vector<char>& code = digest_code_[ordinal];
  if (code.empty()) {
    if (hiprtcCreateProgram == nullptr) GCR_TRY(const_cast<Library*>(this)->resolve_compiler());
    GCR_ASSIGN(code, compile_digest());
  }
  return static_cast<const char*>(code.data());
}

/// For the current device, hipRTC's default.
Result<std::vector<char>> Library::compile_digest() const {
  const std::string doing = "cannot compile the digest kernel";
  std::array<const char*, 2> headers = {digest::kKernelLanguageHip, digest::kIntegersHip};
  std::array<const char*, 2> names = {"kernel_language.h", "cstdint"};
  std::array<const char*, 2> options = {"-std=c++17", "-O3"};
  hiprtcProgram program = nullptr;
  GCR_TRY(check_compiler(
      hiprtcCreateProgram(&program, digest::kDigestKernelSource, "digest_kernel.hip",
                          static_cast<int>(headers.size()), headers.data(), names.data()),
      doing));
  const auto compile = [&]() -> Result<std::vector<char>> {
    const hiprtcResult compiled =
        hiprtcCompileProgram(program, static_cast<int>(options.size()), options.data());
    if (compiled != HIPRTC_SUCCESS) {
      std::size_t size = 0;
      std::string log;
      if (hiprtcGetProgramLogSize(program, &size) == HIPRTC_SUCCESS && size > 1) {
        log.resize(size);
        hiprtcGetProgramLog(program, log.data());
      }
      return check_compiler(compiled, log.empty() ? doing : doing + ": " + log).error();
    }
    std::size_t size = 0;
    GCR_TRY(check_compiler(hiprtcGetCodeSize(program, &size), doing));
    std::vector<char> code(size);
    GCR_TRY(check_compiler(hiprtcGetCode(program, code.data()), doing));
    if (code.empty()) return Error(Code::kInternal, doing + ": it has no code");
    return code;
  };
  auto code = compile();
  hiprtcDestroyProgram(&program);
  return code;
}

Result<std::shared_ptr<const Driver>> load() { return Library::load(); }

}  // namespace gcr::device::hip

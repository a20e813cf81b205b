#include "migrate-agent/gpu/device/hip/library.h"

#include <fmt/format.h>

#include <array>

#include "migrate-agent/gpu/device/hip/driver.h"
#include "migrate-agent/gpu/digest/digest_kernel_hip.h"
#include "migrate-agent/linux/procfs/procfs.h"

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

/// A GPU through HIP: the calling thread's device is set before each call.
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

constexpr char kLibrary[] = "libamdhip64.so";

/// HIP has no call that checkpoints a process: CRIU's plugin moves its control state.
class HipControl final : public Control {
 public:
  explicit HipControl(pid_t pid) : pid_(pid) {}

  bool goes_with_dump() const override { return true; }
  Result<State> state() const override {
    if (procfs::has_library(pid_, kLibrary)) return State::kRunning;
    return Error(Code::kNotFound, fmt::format("process {} does not use HIP", pid_));
  }
  Status lock(std::chrono::milliseconds) const override { return {}; }
  Status checkpoint() const override { return {}; }
  Status restore(const std::vector<GpuPair>&) const override { return {}; }
  Status unlock() const override { return {}; }
  Result<pid_t> restore_thread() const override { return pid_t{0}; }

 private:
  const pid_t pid_;
};

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

Result<std::shared_ptr<Gpu>> Library::open(const GpuInfo& info) const {
  auto calls = std::make_unique<HipCalls>(shared_from_this(), info.ordinal);
  GCR_TRY(calls->enter());
  return std::make_shared<Gpu>(info, std::move(calls));
}

std::unique_ptr<Control> Library::control(pid_t pid) const {
  return std::make_unique<HipControl>(pid);
}

bool Library::is_in(pid_t pid) const { return procfs::has_library(pid, kLibrary); }

Result<std::shared_ptr<const Driver>> load() { return Library::load(); }

}  // namespace gcr::device::hip

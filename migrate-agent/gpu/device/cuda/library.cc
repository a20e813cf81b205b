#include "migrate-agent/gpu/device/cuda/library.h"

#include <fmt/format.h>

#include <cstring>
#include <string>

#include "migrate-agent/gpu/device/cuda/driver.h"
#include "migrate-agent/gpu/digest/digest_kernel_ptx.h"
#include "migrate-agent/linux/procfs/procfs.h"

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

/// The driver's checkpoint API, applied to another process.
class CudaControl final : public Control {
 public:
  CudaControl(std::shared_ptr<const Library> library, pid_t pid)
      : driver_(std::move(library)), pid_(pid) {}

  bool goes_with_dump() const override { return false; }

  Result<State> state() const override {
    CUprocessState state{};
    GCR_TRY(driver_->check(driver_->cuCheckpointProcessGetState(pid_, &state),
                           fmt::format("cannot read the state of CUDA in process {}", pid_)));
    switch (state) {
      case CU_PROCESS_STATE_RUNNING:
        return State::kRunning;
      case CU_PROCESS_STATE_LOCKED:
        return State::kLocked;
      case CU_PROCESS_STATE_CHECKPOINTED:
        return State::kCheckpointed;
      case CU_PROCESS_STATE_FAILED:
        return State::kFailed;
    }
    return Error(Code::kInternal, fmt::format("CUDA in process {} is in an unknown state, {}", pid_,
                                              static_cast<int>(state)));
  }

  Status lock(std::chrono::milliseconds timeout) const override {
    CUcheckpointLockArgs args{};
    args.timeoutMs = static_cast<unsigned>(timeout.count());
    return driver_->check(
        driver_->cuCheckpointProcessLock(pid_, &args),
        fmt::format("cannot lock CUDA in process {} within {} ms", pid_, timeout.count()));
  }

  Status checkpoint() const override {
    CUcheckpointCheckpointArgs args{};
    return driver_->check(driver_->cuCheckpointProcessCheckpoint(pid_, &args),
                          fmt::format("cannot checkpoint CUDA in process {}", pid_));
  }

  Status restore(const std::vector<GpuPair>& pairs) const override {
    std::vector<CUcheckpointGpuPair> driver_pairs(pairs.size());
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      std::memcpy(driver_pairs[i].oldUuid.bytes, pairs[i].from.bytes.data(), 16);
      std::memcpy(driver_pairs[i].newUuid.bytes, pairs[i].to.bytes.data(), 16);
    }
    CUcheckpointRestoreArgs args{};
    if (!pairs.empty()) {
      args.gpuPairs = driver_pairs.data();
      args.gpuPairsCount = static_cast<unsigned>(driver_pairs.size());
    }
    CUresult result = driver_->cuCheckpointProcessRestore(pid_, &args);
    // The driver wants a pair for each GPU whose device file the process could open when it started
    // CUDA, and no more. Only the driver knows which those were. With other pairs it refuses and
    // changes nothing, so they are dropped from the end until it accepts.
    while (result == CUDA_ERROR_INVALID_VALUE && args.gpuPairsCount > 1) {
      --args.gpuPairsCount;
      result = driver_->cuCheckpointProcessRestore(pid_, &args);
    }
    if (result == CUDA_SUCCESS) return {};
    std::string places;
    for (const GpuPair& pair : pairs) {
      places += fmt::format(", {} as {}", gpu_name(pair.from), gpu_name(pair.to));
    }
    return driver_->check(result, fmt::format("cannot restore CUDA in process {}{}", pid_, places));
  }

  Status unlock() const override {
    CUcheckpointUnlockArgs args{};
    return driver_->check(driver_->cuCheckpointProcessUnlock(pid_, &args),
                          fmt::format("cannot unlock CUDA in process {}", pid_));
  }

  Result<pid_t> restore_thread() const override {
    int tid = 0;
    GCR_TRY(driver_->check(driver_->cuCheckpointProcessGetRestoreThreadId(pid_, &tid),
                           fmt::format("cannot find the CUDA restore thread of process {}", pid_)));
    return static_cast<pid_t>(tid);
  }

 private:
  const std::shared_ptr<const Library> driver_;
  const pid_t pid_;
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

std::unique_ptr<Control> Library::control(pid_t pid) const {
  return std::make_unique<CudaControl>(shared_from_this(), pid);
}

bool Library::is_in(pid_t pid) const { return procfs::has_library(pid, "libcuda.so"); }

Result<std::shared_ptr<const Driver>> load() { return Library::load(); }

}  // namespace gcr::device::cuda

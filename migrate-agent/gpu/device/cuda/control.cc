// The driver's checkpoint API, applied to another process.
#include <fmt/format.h>

#include <cstring>

#include "migrate-agent/gpu/device/cuda/library.h"
#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::device::cuda {
namespace {

class CudaControl final : public Control {
 public:
  CudaControl(std::shared_ptr<const Library> library, pid_t pid)
      : driver_(std::move(library)), pid_(pid) {}

  bool goes_with_dump() const override { return false; }
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

Result<Control::State> CudaControl::state() const {
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

Status CudaControl::lock(std::chrono::milliseconds timeout) const {
  CUcheckpointLockArgs args{};
  args.timeoutMs = static_cast<unsigned>(timeout.count());
  return driver_->check(
      driver_->cuCheckpointProcessLock(pid_, &args),
      fmt::format("cannot lock CUDA in process {} within {} ms", pid_, timeout.count()));
}

Status CudaControl::checkpoint() const {
  CUcheckpointCheckpointArgs args{};
  return driver_->check(driver_->cuCheckpointProcessCheckpoint(pid_, &args),
                        fmt::format("cannot checkpoint CUDA in process {}", pid_));
}

Status CudaControl::restore(const std::vector<GpuPair>& pairs) const {
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
  return driver_->check(result, fmt::format("cannot restore CUDA in process {}", pid_));
}

Status CudaControl::unlock() const {
  CUcheckpointUnlockArgs args{};
  return driver_->check(driver_->cuCheckpointProcessUnlock(pid_, &args),
                        fmt::format("cannot unlock CUDA in process {}", pid_));
}

Result<pid_t> CudaControl::restore_thread() const {
  int tid = 0;
  GCR_TRY(driver_->check(driver_->cuCheckpointProcessGetRestoreThreadId(pid_, &tid),
                         fmt::format("cannot find the CUDA restore thread of process {}", pid_)));
  return static_cast<pid_t>(tid);
}

}  // namespace

std::unique_ptr<Control> Library::control(pid_t pid) const {
  return std::make_unique<CudaControl>(shared_from_this(), pid);
}

bool Library::is_in(pid_t pid) const { return procfs::has_library(pid, "libcuda.so"); }

}  // namespace gcr::device::cuda

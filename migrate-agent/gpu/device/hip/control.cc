// HIP has no call that checkpoints a process: CRIU's plugin moves its control state.
#include <fmt/format.h>

#include "migrate-agent/gpu/device/hip/library.h"
#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::device::hip {
namespace {

constexpr char kLibrary[] = "libamdhip64.so";

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

std::unique_ptr<Control> Library::control(pid_t pid) const {
  return std::make_unique<HipControl>(pid);
}

bool Library::is_in(pid_t pid) const { return procfs::has_library(pid, kLibrary); }

}  // namespace gcr::device::hip

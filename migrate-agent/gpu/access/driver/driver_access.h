// GPU access through the driver alone, for a process that was not started under the preload library
// (design decision 23). The driver's lock is its gate, and all its VRAM is control state: it has no
// allocations, and detach and attach have nothing to do.
//
// The lock has no lease: a process whose agent dies stays locked until its recovery.
#pragma once

#include <memory>

#include "migrate-agent/gpu/access/gpu_access.h"
#include "migrate-agent/gpu/device/device.h"

namespace gcr::gpu {

class DriverAccess : public GpuAccess {
 public:
  /// How long the driver waits for the process's work before it lets the calls pass again.
  static constexpr Milliseconds kLockPatience = std::chrono::seconds(10);

  /// `pid` is a PID in the caller's PID namespace.
  DriverAccess(pid_t pid, const device::Driver& driver)
      : pid_(pid), control_(driver.control(pid)) {}

  bool is_driver_alone() const override { return true; }

  /// Locks, unless this object has done so; kRefused if another agent has. The driver holds back
  /// all calls or none, so this ignores the patience and waits for up to kLockPatience; after that
  /// the calls pass again. There is no lease. kUnavailable, also from the next three: the process
  /// is stopped, and the driver would wait for it.
  Result<Held> hold(Microseconds patience, Milliseconds lease) override;
  /// As hold(): no single call can pass.
  Result<Held> step(Microseconds patience) override;
  /// Unlocks, if it is locked. kRefused while it is checkpointed.
  Status resume() override;
  /// `quiet` means that the process is locked or checkpointed.
  Result<AccessState> read_state(Milliseconds patience) override;
  Result<std::vector<LocalAllocation>> allocations() override;
  /// kNotFound for any id.
  Result<std::vector<ExportedAllocation>> take(std::span<const std::uint64_t> ids) override;
  Status detach() override;
  /// kInvalidArgument for any descriptor.
  Status attach(std::vector<std::pair<std::uint64_t, UniqueFd>> descriptors) override;

 private:
  /// kDataLoss if the driver reports that the process's CUDA state is lost.
  Result<device::Control::State> state() const;

  pid_t pid_;
  std::unique_ptr<device::Control> control_;
  bool held_ = false;  ///< by hold()
};

}  // namespace gcr::gpu

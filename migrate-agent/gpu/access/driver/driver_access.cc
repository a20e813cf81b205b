#include "migrate-agent/gpu/access/driver/driver_access.h"

#include <fmt/format.h>

#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::gpu {

using State = device::Control::State;

Result<State> DriverAccess::state() const {
  // Threads that are held by ptrace leave the driver's own running.
  if (procfs::state(std::to_string(pid_)) == 'T') {
    return Error(Code::kUnavailable,
                 fmt::format("process {} is stopped, so its CUDA driver cannot answer", pid_));
  }
  GCR_ASSIGN(const State state, control_->state());
  if (state != State::kFailed) return state;
  return Error(Code::kDataLoss,
               fmt::format("the driver has failed to restore CUDA in process {}", pid_));
}

Result<Held> DriverAccess::hold(Microseconds, Milliseconds) {
  if (held_) return Held{.quiet = true};
  GCR_ASSIGN(const State now, state());
  if (now != State::kRunning) {
    return Error(Code::kRefused,
                 fmt::format("another program has locked CUDA in process {}", pid_));
  }
  const Status locked = control_->lock(kLockPatience);
  held_ = locked.has_value();
  if (held_) return Held{.quiet = true};
  if (locked.error().code() != Code::kTimeout) return locked.error();
  return Held{.obstacle =
                  "work on its GPUs did not finish, and without the preload library its "
                  "calls cannot be let pass one by one"};
}

Result<Held> DriverAccess::step(Microseconds patience) { return hold(patience, {}); }

Status DriverAccess::resume() {
  GCR_ASSIGN(const State now, state());
  if (now == State::kCheckpointed) {
    return Error(Code::kRefused, fmt::format("CUDA in process {} is checkpointed", pid_));
  }
  if (now == State::kLocked) GCR_TRY(control_->unlock());
  held_ = false;
  return {};
}

Result<AccessState> DriverAccess::read_state(Milliseconds) {
  GCR_ASSIGN(const State now, state());
  return AccessState{.quiet = now != State::kRunning};
}

Result<std::vector<LocalAllocation>> DriverAccess::allocations() {
  return std::vector<LocalAllocation>();
}

Result<std::vector<ExportedAllocation>> DriverAccess::take(std::span<const std::uint64_t> ids) {
  if (ids.empty()) return std::vector<ExportedAllocation>();
  return Error(Code::kNotFound, "the driver does not list allocations");
}

Status DriverAccess::detach() { return {}; }

Status DriverAccess::attach(std::vector<std::pair<std::uint64_t, UniqueFd>> descriptors) {
  if (descriptors.empty()) return {};
  return Error(Code::kInvalidArgument,
               "buffers cannot be mapped in a process without the preload library");
}

}  // namespace gcr::gpu

#include "migrate-agent/driver_access/driver_access.h"

namespace gcr::agent {
namespace {

using State = device::Control::State;

Error nobody_in_it() {
  return Error(Code::kUnsupported, "the process was not started under the preload library");
}

}  // namespace

Result<State> DriverAccess::state() const {
  GCR_ASSIGN(const State state, control_->state());
  if (state != State::kFailed) return state;
  return Error(Code::kDataLoss, "the driver has given up on CUDA in the process");
}

Result<Held> DriverAccess::hold(Microseconds, Milliseconds) {
  GCR_ASSIGN(const State now, state());
  if (now != State::kRunning) return Held{.quiet = true};
  const Status locked = control_->lock(kLockPatience);
  if (locked) return Held{.quiet = true};
  if (locked.error().code() != Code::kTimeout) return locked.error();
  return Held{.obstacle =
                  "work on its GPUs did not finish, and without the preload library its "
                  "calls cannot be let pass one by one"};
}

Result<Held> DriverAccess::step(Microseconds patience) { return hold(patience, {}); }

Status DriverAccess::resume() {
  GCR_ASSIGN(const State now, state());
  if (now == State::kLocked) return control_->unlock();
  if (now == State::kRunning) return {};
  return Error(Code::kRefused, "CUDA in the process is checkpointed");
}

Result<AccessState> DriverAccess::look(Milliseconds) {
  GCR_ASSIGN(const State now, state());
  return AccessState{.quiet = now != State::kRunning};
}

Result<std::vector<LocalAllocation>> DriverAccess::allocations() {
  return std::vector<LocalAllocation>();
}

Result<std::vector<ExportedAllocation>> DriverAccess::take(std::span<const std::uint64_t> ids) {
  if (ids.empty()) return std::vector<ExportedAllocation>();
  return Error(Code::kNotFound, "the driver tells of no allocations");
}

Status DriverAccess::detach() { return {}; }

Status DriverAccess::attach(std::vector<std::pair<std::uint64_t, UniqueFd>> descriptors) {
  if (descriptors.empty()) return {};
  return Error(Code::kInvalidArgument,
               "buffers cannot be mapped in a process without the preload library");
}

Result<std::uint64_t> DriverAccess::drop_pages(std::span<const Pages>) { return nobody_in_it(); }

Status DriverAccess::use_huge_pages(std::span<const Pages>) { return nobody_in_it(); }

}  // namespace gcr::agent

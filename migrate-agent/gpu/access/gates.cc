// How gates close: all at once. A member whose GPU works is waited for. If its work does not end
// soon, it may wait for a kernel that an idle member has not launched, because that launch is held
// back. So the idle member that has been idle for longest may make one held call, then all are
// looked at again. A wait begins anew each time that everything that was waited for has ended.
#include "migrate-agent/gpu/access/gates.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "src/base/side_by_side.h"

namespace gcr::gpu {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

/// How long a GPU may compute before it is assumed to wait for another GPU. It doubles for a member
/// each time that the call which was let pass turns out to be what is waited for: its kernels may
/// simply be long.
constexpr milliseconds kFirstWait{10};
/// How long update() waits for a member.
constexpr microseconds kUpdatePatience{2000};
/// How long a member that made a held call may take to be idle again.
constexpr microseconds kStepPatience{200};

/// One attempt to close all gates.
class Closing {
 public:
  struct One {
    pid_t pid;
    GpuAccess* access;
    Held held{};
    bool awaited = false;           ///< it has worked since this wait began
    Clock::time_point worked_at{};  ///< when it was last seen to work
    bool stepped = false;           ///< it has made a held call since it was last awaited
    milliseconds patience = kFirstWait;
  };

  Closing(const std::vector<Gates::Member>& members, milliseconds timeout, milliseconds lease,
          const Gates::Watch& watch)
      : began_(Clock::now()), timeout_(timeout), lease_(lease), watch_(watch) {
    for (const Gates::Member& member : members) members_.push_back({member.pid, member.access});
  }

  Status run() {
    GCR_TRY(update(std::min<microseconds>(kFirstWait, timeout_)));
    while (!std::ranges::all_of(members_, [](const One& one) { return one.held.quiet; })) {
      if (elapsed() >= timeout_) return timed_out();
      GCR_TRY(go_on());
    }
    return {};
  }

 private:
  Clock::duration elapsed() const { return Clock::now() - began_; }

  std::vector<One*> those(bool (*holds)(const One&)) {
    std::vector<One*> list;
    for (One& one : members_) {
      if (holds(one)) list.push_back(&one);
    }
    return list;
  }

  /// Updates the state of all members but those that are idle and have a held call.
  Status update(microseconds patience) {
    const microseconds left = std::chrono::ceil<microseconds>(timeout_ - elapsed());
    patience = std::clamp(left, microseconds(0), patience);
    const auto members =
        those([](const One& one) { return !one.held.quiet || one.held.waiting == 0; });
    return side_by_side(members, [&](One* one) -> Status {
      const bool worked = !one->held.quiet;
      GCR_ASSIGN(one->held, one->access->hold(patience, lease_));
      if (worked) one->worked_at = Clock::now();
      return {};
    });
  }

  Status step(One& one) {
    ++steps_;
    one.stepped = true;
    GCR_ASSIGN(one.held, one.access->step(kStepPatience));
    one.worked_at = Clock::now();
    return {};
  }

  Status go_on() {
    for (One& one : members_) one.awaited = one.awaited && !one.held.quiet;
    if (std::ranges::none_of(members_, &One::awaited)) begin_waiting();
    if (const auto capturing =
            those([](const One& one) { return one.held.capturing && one.held.waiting > 0; });
        !capturing.empty()) {
      return step_and_update(capturing);
    }
    if (Clock::now() - waiting_since_ < patience_) return update(kUpdatePatience);
    if (const auto idle =
            those([](const One& one) { return one.held.quiet && one.held.waiting > 0; });
        !idle.empty()) {
      return step_and_update(idle);
    }
    // Work on a GPU, or a call in flight, may wait for a thread of the same process that is held.
    const auto busy = those([](const One& one) { return one.held.waiting > 0; });
    if (elapsed() < timeout_ / 2 || busy.empty()) return update(kUpdatePatience);
    GCR_TRY(step(**std::ranges::min_element(busy, {}, &One::worked_at)));
    return update(kUpdatePatience);
  }

  /// A new wait, for the members that work now.
  void begin_waiting() {
    waiting_since_ = Clock::now();
    patience_ = kFirstWait;
    told_ = false;
    for (One& one : members_) {
      one.awaited = !one.held.quiet;
      if (one.awaited && std::exchange(one.stepped, false)) one.patience *= 2;
      if (one.awaited) patience_ = std::max(patience_, one.patience);
    }
  }

  /// Lets the member that has been idle for longest make one held call: most likely it is the one
  /// that is furthest behind.
  Status step_and_update(const std::vector<One*>& members) {
    if (!std::exchange(told_, true) && watch_) {
      watch_(fmt::format("{}: calls of {} are let pass",
                         names([](const One& o) { return o.awaited; }),
                         fmt::join(pids(members), ", ")));
    }
    GCR_TRY(step(**std::ranges::min_element(members, {}, &One::worked_at)));
    return update(kStepPatience);
  }

  static std::vector<pid_t> pids(const std::vector<One*>& members) {
    std::vector<pid_t> list;
    for (const One* one : members) list.push_back(one->pid);
    return list;
  }

  /// "process 12: work on its GPUs did not finish; …"
  std::string names(bool (*holds)(const One&)) {
    if (members_.size() == 1) return members_.front().held.obstacle;
    std::vector<std::string> list;
    for (const One* one : those(holds)) {
      list.push_back(fmt::format("process {}: {}", one->pid, one->held.obstacle));
    }
    return fmt::format("{}", fmt::join(list, "; "));
  }

  Error timed_out() {
    std::string text = fmt::format(
        "cannot hold back the CUDA calls of {} within {} ms: {}",
        members_.size() == 1 ? fmt::format("process {}", members_.front().pid) : "the job",
        timeout_.count(), names([](const One& one) { return !one.held.quiet; }));
    if (steps_ > 0) text += fmt::format(" ({} calls were let pass one by one)", steps_);
    return Error(Code::kTimeout, text);
  }

  const Clock::time_point began_;
  const milliseconds timeout_;
  const milliseconds lease_;
  const Gates::Watch& watch_;
  std::vector<One> members_;
  Clock::time_point waiting_since_ = began_;
  milliseconds patience_ = kFirstWait;
  bool told_ = false;  ///< since the waiting began
  std::size_t steps_ = 0;
};

}  // namespace

Status Gates::quiesce(Milliseconds timeout, Milliseconds lease) {
  const Status closed = Closing(members_, timeout, lease, watch_).run();
  if (!closed) (void)resume();
  return closed;
}

Status Gates::resume() {
  return side_by_side(members_, [](const Member& member) { return member.access->resume(); });
}

}  // namespace gcr::gpu

#include "migrate-agent/gpu/access/throttle.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace gcr::gpu {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

/// If this process dies, the gate opens after this. Longer than the gate is ever held.
constexpr std::chrono::milliseconds kLease{2000};
/// Less is not worth closing the gate for.
constexpr std::chrono::milliseconds kLeastHeld{1};
/// How long the GPU's work may keep the gate from closing.
constexpr std::chrono::milliseconds kPatience{100};

}  // namespace

struct Throttle::Impl {
  explicit Impl(Gate& gate_of_others)
      : gate(gate_of_others), thread([this](const std::stop_token& token) { run(token); }) {}

  void run(const std::stop_token& token) {
    while (!token.stop_requested() && status) {
      std::unique_lock lock(mutex);
      // While the share is too small, there is nothing to do until it changes or the throttle ends.
      changed.wait(lock, token, [this] { return time_to_hold() >= kLeastHeld; });
      if (token.stop_requested()) return;
      const nanoseconds time = time_to_hold();
      lock.unlock();
      status = hold_for(time, token);
      wait_until(Clock::now() + kWindow, token);
    }
  }

  nanoseconds time_to_hold() const {
    return std::chrono::duration_cast<nanoseconds>(kWindow * (share / (1 - share)));
  }

  Status hold_for(nanoseconds time, const std::stop_token& token) {
    const auto start = Clock::now();
    const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(time);
    const Status closed = gate.quiesce(std::max(timeout, kPatience), kLease);
    Status ended;
    if (closed) {
      wait_until(start + time, token);
      ended = gate.resume();
    } else if (closed.error().code() != Code::kTimeout) {
      ended = closed;
    }
    const std::lock_guard lock(mutex);
    held += Clock::now() - start;
    return ended;
  }

  void wait_until(Clock::time_point end, const std::stop_token& token) {
    std::unique_lock lock(mutex);
    changed.wait_until(lock, token, end, [] { return false; });
  }

  Gate& gate;
  const Clock::time_point start = Clock::now();
  mutable std::mutex mutex;
  std::condition_variable_any changed;
  double share = 0;  ///< guarded by the mutex, as `held`
  nanoseconds held{0};
  Status status;  ///< of the thread, until it has ended
  std::jthread thread;
};

double Throttle::Held::share() const {
  return elapsed.count() > 0
             ? static_cast<double>(held.count()) / static_cast<double>(elapsed.count())
             : 0;
}

Throttle::Throttle(Gate& gate) : impl_(std::make_unique<Impl>(gate)) {}
Throttle::Throttle(Throttle&&) noexcept = default;
Throttle& Throttle::operator=(Throttle&&) noexcept = default;
Throttle::~Throttle() = default;

void Throttle::set_share(double share) {
  const std::lock_guard lock(impl_->mutex);
  impl_->share = std::clamp(share, 0.0, kMostShare);
  impl_->changed.notify_all();
}

Throttle::Held Throttle::held() const {
  const std::lock_guard lock(impl_->mutex);
  return {impl_->held, Clock::now() - impl_->start};
}

Status Throttle::stop() {
  if (!impl_->thread.joinable()) return {};
  impl_->thread.request_stop();
  impl_->thread.join();
  return impl_->status;
}

}  // namespace gcr::gpu

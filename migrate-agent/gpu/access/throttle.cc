#include "migrate-agent/gpu/access/throttle.h"

#include <algorithm>

namespace gcr::gpu {
namespace {

using std::chrono::nanoseconds;

/// If this process dies, the gate opens after this. Longer than the gate is ever held.
constexpr std::chrono::milliseconds kLease{2000};
/// Less is not worth closing the gate for.
constexpr std::chrono::milliseconds kLeastHeld{1};
/// How long the GPU's work may keep the gate from closing.
constexpr std::chrono::milliseconds kPatience{100};

}  // namespace

double Throttle::Held::share() const {
  return elapsed.count() > 0
             ? static_cast<double>(held.count()) / static_cast<double>(elapsed.count())
             : 0;
}

Throttle::Throttle(Gate& gate)
    : gate_(gate), thread_([this](const std::stop_token& token) { run(token); }) {}

void Throttle::run(const std::stop_token& token) {
  while (!token.stop_requested() && status_) {
    std::unique_lock lock(mutex_);
    // While the share is too small, there is nothing to do until it changes or the throttle ends.
    changed_.wait(lock, token, [this] { return time_to_hold() >= kLeastHeld; });
    if (token.stop_requested()) return;
    const nanoseconds time = time_to_hold();
    lock.unlock();
    status_ = hold_for(time, token);
    wait_until(Clock::now() + kWindow, token);
  }
}

nanoseconds Throttle::time_to_hold() const {
  return std::chrono::duration_cast<nanoseconds>(kWindow * (share_ / (1 - share_)));
}

Status Throttle::hold_for(nanoseconds time, const std::stop_token& token) {
  const auto start = Clock::now();
  const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(time);
  const Status closed = gate_.quiesce(std::max(timeout, kPatience), kLease);
  Status ended;
  if (closed) {
    wait_until(start + time, token);
    ended = gate_.resume();
  } else if (closed.error().code() != Code::kTimeout) {
    ended = closed;
  }
  const std::lock_guard lock(mutex_);
  held_ += Clock::now() - start;
  return ended;
}

void Throttle::wait_until(Clock::time_point end, const std::stop_token& token) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, token, end, [] { return false; });
}

void Throttle::set_share(double share) {
  const std::lock_guard lock(mutex_);
  share_ = std::clamp(share, 0.0, kMostShare);
  changed_.notify_all();
}

Throttle::Held Throttle::held() const {
  const std::lock_guard lock(mutex_);
  return {held_, Clock::now() - start_};
}

Status Throttle::stop() {
  if (!thread_.joinable()) return {};
  thread_.request_stop();
  thread_.join();
  return status_;
}

}  // namespace gcr::gpu

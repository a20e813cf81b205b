#include "tests/softgpu/engine/scheduler.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <asio/defer.hpp>
#include <thread>
#include <utility>

namespace gcr::softgpu {
namespace {

constexpr std::size_t kThreads = 4;
constexpr std::size_t kMaxUnfinished = 1024;
/// Between two polls of spinning tasks: the longer they wait, the longer the pause.
constexpr std::chrono::microseconds kShortestPause{20};
constexpr std::chrono::microseconds kLongestPause{1000};

/// Blocks the application's signals in threads that are created during its lifetime.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

Scheduler::Scheduler() : pool_((SignalsBlocked(), kThreads)) {}

TaskRef Scheduler::submit(std::function<bool()> run, std::span<const TaskRef> after) {
  auto task = std::make_shared<Task>();
  task->run_ = std::move(run);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return unfinished_ < kMaxUnfinished; });
  ++unfinished_;
  for (const TaskRef& earlier : after) {
    if (!earlier || earlier->done()) continue;
    earlier->successors_.push_back(task);
    ++task->waits_for_;
  }
  if (--task->waits_for_ == 0) start(task);
  return task;
}

void Scheduler::start(TaskRef task) {
  // From a thread of the pool: it runs this task itself, and wakes no other for it.
  asio::defer(pool_, [this, task = std::move(task)] { execute(task); });
}

void Scheduler::execute(const TaskRef& task) {
  if (!task->run_()) return try_again_later(task);
  task->run_ = nullptr;
  std::lock_guard lock(mutex_);
  task->done_.store(true, std::memory_order_release);
  for (TaskRef& next : task->successors_) {
    if (--next->waits_for_ == 0) start(std::move(next));
  }
  task->successors_.clear();
  --unfinished_;
  // Waiters for a later task keep sleeping.
  if (task->awaited_ || unfinished_ == 0 || unfinished_ + 1 == kMaxUnfinished) {
    changed_.notify_all();
  }
}

void Scheduler::try_again_later(const TaskRef& task) {
  std::lock_guard lock(spinning_mutex_);
  if (!std::exchange(task->spins_, true)) pause_ = kShortestPause;
  spinning_.push_back(task);
  if (!std::exchange(spinner_started_, true)) {
    const SignalsBlocked blocked;
    std::thread([this] { try_again(); }).detach();
  }
  spins_.notify_one();
}

void Scheduler::try_again() {
  ::pthread_setname_np(::pthread_self(), "softgpu-spin");
  std::unique_lock lock(spinning_mutex_);
  while (true) {
    spins_.wait(lock, [&] { return !spinning_.empty(); });
    const auto pause = pause_;
    pause_ = std::min(2 * pause_, kLongestPause);
    lock.unlock();
    std::this_thread::sleep_for(pause);
    lock.lock();
    for (TaskRef& task : std::exchange(spinning_, {})) start(std::move(task));
  }
}

void Scheduler::wait(const TaskRef& task) {
  if (!task || task->done()) return;
  std::unique_lock lock(mutex_);
  task->awaited_ = true;
  changed_.wait(lock, [&] { return task->done(); });
}

bool Scheduler::wait_idle(const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  const auto idle = [&] { return unfinished_ == 0; };
  if (!deadline) {
    changed_.wait(lock, idle);
    return true;
  }
  return changed_.wait_until(lock, *deadline, idle);
}

}  // namespace gcr::softgpu

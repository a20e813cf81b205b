#include "tests/softgpu/scheduler.h"

#include <signal.h>

#include <asio/post.hpp>

namespace gcr::softgpu {
namespace {

constexpr std::size_t kThreads = 4;
constexpr std::size_t kMaxUnfinished = 1024;

/// Keeps the application's signals away from threads that are created while it lives.
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

TaskRef Scheduler::submit(std::function<void()> run, std::span<const TaskRef> after) {
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
  asio::post(pool_, [this, task = std::move(task)] { execute(task); });
}

void Scheduler::execute(const TaskRef& task) {
  task->run_();
  task->run_ = nullptr;
  std::lock_guard lock(mutex_);
  task->done_.store(true, std::memory_order_release);
  for (TaskRef& next : task->successors_) {
    if (--next->waits_for_ == 0) start(std::move(next));
  }
  task->successors_.clear();
  --unfinished_;
  changed_.notify_all();
}

void Scheduler::wait(const TaskRef& task) {
  if (!task || task->done()) return;
  std::unique_lock lock(mutex_);
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

#include "tests/softgpu/engine/event_thread.h"

#include <pthread.h>
#include <signal.h>

#include <thread>

namespace gcr::softgpu {

void EventThread::wait() {
  std::unique_lock lock(mutex_);
  if (!started_) {
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before);
    std::thread([this] { run(); }).detach();
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    started_ = true;
  }
  const std::uint64_t mine = ++asked_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return answered_ >= mine; });
}

void EventThread::run() {
  ::pthread_setname_np(::pthread_self(), "softgpu-events");
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return answered_ < asked_; });
    answered_ = asked_;
    changed_.notify_all();
  }
}

}  // namespace gcr::softgpu

#pragma once

#include <pthread.h>

#include <csignal>

namespace gcr::transport {

/// Blocks signals in a lane's thread, at either end: they are for the program's other threads.
inline void become_lane_thread() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  pthread_setname_np(pthread_self(), "gcr-lane");
}

}  // namespace gcr::transport

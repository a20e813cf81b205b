#pragma once

#include <pthread.h>

#include <csignal>

namespace gcr::transport {

/// A lane's thread, of either end, serves sockets only: signals are for the threads of the program.
inline void become_lane_thread() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  pthread_setname_np(pthread_self(), "gcr-lane");
}

}  // namespace gcr::transport

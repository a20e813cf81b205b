#include "preload/quiet_thread.h"

#include <limits.h>
#include <signal.h>

#include <cstddef>

namespace gcr::preload {
namespace {

// Enough stack for calls into the driver; only touched pages use memory.
constexpr std::size_t kStackBytes = 512 * 1024;

}  // namespace

bool start_quiet_thread(const char* name, void* (*body)(void*), void* argument, pthread_t* thread) {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  pthread_attr_setstacksize(&attributes, kStackBytes);
  sigset_t all, before;
  sigfillset(&all);
  // The new thread inherits the mask, so it never receives a signal.
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const bool started = pthread_create(thread, &attributes, body, argument) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (started) pthread_setname_np(*thread, name);
  return started;
}

}  // namespace gcr::preload

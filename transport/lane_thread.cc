#include "transport/lane_thread.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

namespace gcr::transport {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

void become_lane_thread(const char* name) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  pthread_setname_np(pthread_self(), name);
}

Status set_blocking(int fd, bool blocks) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, blocks ? flags & ~O_NONBLOCK : flags | O_NONBLOCK) != 0) {
    return Error::from_errno(errno, "setting a data connection to blocking or non-blocking");
  }
  return {};
}

Result<bool> wait_ready(std::span<pollfd> waits, milliseconds limit) {
  const auto deadline = steady_clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now()).count();
    const int timeout = static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
    const int ready = ::poll(waits.data(), waits.size(), timeout);
    if (ready >= 0) return ready > 0;
    if (errno != EINTR) return Error::from_errno(errno, "waiting for a data connection");
  }
}

Result<UniqueFd> make_wake() {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return Error::from_errno(errno, "creating an eventfd");
  return wake;
}

void wake_up(const UniqueFd& wake) { (void)::eventfd_write(wake.get(), 1); }

void clear_wake(const UniqueFd& wake) {
  eventfd_t count = 0;
  (void)::eventfd_read(wake.get(), &count);
}

}  // namespace gcr::transport

// What threads that serve RDMA connections share.
#pragma once

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>

#include "src/base/result.h"
#include "src/base/unique_fd.h"

namespace gcr::transport::rdma {

/// Blocks signals in threads that serve connections: they are for the program's other threads.
inline void become_lane_thread() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  pthread_setname_np(pthread_self(), "gcr-rdma");
}

/// A descriptor that wake_up() makes readable.
inline Result<UniqueFd> make_wake() {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return Error::from_errno(errno, "cannot make an eventfd");
  return wake;
}

/// Makes `wake` readable until calm_down(). Never blocks.
inline void wake_up(const UniqueFd& wake) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake.get(), &one, sizeof one);
}

inline void calm_down(const UniqueFd& wake) {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto read = ::read(wake.get(), &count, sizeof count);
}

}  // namespace gcr::transport::rdma

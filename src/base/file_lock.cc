#include "src/base/file_lock.h"

#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <thread>

namespace gcr {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

Status lock_file(int fd, std::string_view what, milliseconds patience) {
  constexpr milliseconds kFirstPause{1};
  constexpr milliseconds kLongestPause{16};
  const auto end = steady_clock::now() + patience;
  milliseconds pause = kFirstPause;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return Error::from_errno(errno, fmt::format("cannot lock {}", what));
    if (steady_clock::now() >= end) {
      return Error(Code::kTimeout, fmt::format("another process holds the lock of {}", what));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  return {};
}

}  // namespace gcr

// The system call of another thread of this process.
#pragma once

#include <sys/types.h>

#include <fstream>
#include <functional>
#include <string>
#include <thread>

namespace gcr::test {

/// Waits until thread `tid` is in the system call of that number, or until `over`.
inline void wait_until_in(pid_t tid, long number, const std::function<bool()>& over = {}) {
  long current = -1;
  while (current != number && !(over && over())) {
    std::this_thread::yield();
    current = -1;
    std::ifstream("/proc/self/task/" + std::to_string(tid) + "/syscall") >> current;
  }
}

}  // namespace gcr::test

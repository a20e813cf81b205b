#include "migrate-agent/criu/tracing.h"

#include <errno.h>
#include <poll.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <chrono>
#include <string>

namespace gcr::criu::tracing {
namespace {

constexpr std::chrono::seconds kDeathPatience{10};

}  // namespace

Result<int> stop(pid_t tid, unsigned long options) {
  const std::string doing = "cannot seize thread " + std::to_string(tid);
  if (::ptrace(PTRACE_SEIZE, tid, nullptr, options) != 0) {
    if (errno == ESRCH) return Error(Code::kNotFound, doing + ": it has ended");
    return Error::from_errno(errno, doing);
  }
  if (::ptrace(PTRACE_INTERRUPT, tid, nullptr, nullptr) != 0 && errno != ESRCH) {
    return Error::from_errno(errno, doing);
  }
  int status = 0;
  while (::waitpid(tid, &status, __WALL) < 0) {
    if (errno != EINTR) return Error::from_errno(errno, doing);
  }
  if (!WIFSTOPPED(status)) return Error(Code::kNotFound, doing + ": it has ended");
  // A stop of ptrace's own has the event in the upper bits; without one, a signal is about to be
  // delivered.
  return status >> 16 == 0 ? WSTOPSIG(status) : 0;
}

bool let_go(pid_t tid, int signal_number) {
  const auto deadline = std::chrono::steady_clock::now() + kDeathPatience;
  while (::ptrace(PTRACE_DETACH, tid, nullptr, signal_number) != 0) {
    if (errno != ESRCH) return false;
    // It is being killed. A process ends only when the tracers of its threads have reaped them.
    int status = 0;
    const pid_t seen = ::waitpid(tid, &status, __WALL | WNOHANG);
    const bool reaped = seen < 0 || (seen == tid && !WIFSTOPPED(status));
    if (reaped || std::chrono::steady_clock::now() > deadline) {
      errno = ESRCH;
      return false;
    }
    if (seen == 0) ::poll(nullptr, 0, 1);
  }
  return true;
}

}  // namespace gcr::criu::tracing

#include "migrate-agent/linux/ptrace/tracing.h"

#include <errno.h>
#include <poll.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <chrono>
#include <string>

namespace gcr::tracing {
namespace {

constexpr std::chrono::seconds kDeathPatience{2};

std::string seizing(pid_t tid) { return "cannot seize thread " + std::to_string(tid); }

Error has_ended(pid_t tid) { return Error(Code::kNotFound, seizing(tid) + ": it has ended"); }

}  // namespace

Status seize(pid_t tid, unsigned long options) {
  if (::ptrace(PTRACE_SEIZE, tid, nullptr, options) != 0) {
    if (errno == ESRCH) return has_ended(tid);
    return Error::from_errno(errno, seizing(tid));
  }
  if (::ptrace(PTRACE_INTERRUPT, tid, nullptr, nullptr) != 0 && errno != ESRCH) {
    return Error::from_errno(errno, seizing(tid));
  }
  return {};
}

Result<int> wait_until_stopped(pid_t tid) {
  int status = 0;
  while (::waitpid(tid, &status, __WALL) < 0) {
    if (errno != EINTR) return Error::from_errno(errno, seizing(tid));
  }
  if (!WIFSTOPPED(status)) return has_ended(tid);
  // A ptrace stop has the event in the upper bits; without one, a signal is about to be delivered.
  return status >> 16 == 0 ? WSTOPSIG(status) : 0;
}

Result<int> stop(pid_t tid, unsigned long options) {
  GCR_TRY(seize(tid, options));
  return wait_until_stopped(tid);
}

bool detach(pid_t tid, int signal_number) {
  return ::ptrace(PTRACE_DETACH, tid, nullptr, signal_number) == 0;
}

void reap(std::set<pid_t> dying) {
  const auto deadline = std::chrono::steady_clock::now() + kDeathPatience;
  for (;;) {
    // The main thread of a process shows as ended only when all others are reaped.
    std::erase_if(dying, [](pid_t tid) {
      int status = 0;
      const pid_t seen = ::waitpid(tid, &status, __WALL | WNOHANG);
      if (seen == tid && WIFSTOPPED(status)) return detach(tid, 0);
      return seen == tid || (seen < 0 && errno != EINTR);
    });
    if (dying.empty() || std::chrono::steady_clock::now() > deadline) return;
    ::poll(nullptr, 0, 1);
  }
}

}  // namespace gcr::tracing

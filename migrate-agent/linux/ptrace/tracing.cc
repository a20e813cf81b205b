#include "migrate-agent/linux/ptrace/tracing.h"

#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::tracing {
namespace {

constexpr std::chrono::seconds kDeathPatience{2};

std::string seizing(pid_t tid) { return "cannot seize thread " + std::to_string(tid); }

Error has_ended(pid_t tid) { return Error(Code::kNotFound, seizing(tid) + ": it has ended"); }

bool stop_is_due(const std::string& task) {
  constexpr std::uint64_t kStop = 1ull << (SIGSTOP - 1);
  return ((procfs::status_bits(task, "SigPnd") | procfs::status_bits(task, "ShdPnd")) & kStop) != 0;
}

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

HeldThreads::~HeldThreads() { release(); }

Status HeldThreads::hold_all_but(pid_t running) {
  // A thread with another tracer would report the stop signal to that tracer.
  for (const pid_t tid : procfs::threads(pid_)) {
    const std::string task = std::to_string(pid_) + "/task/" + std::to_string(tid);
    const std::string tracer = procfs::status_field(task, "TracerPid");
    if (tracer.empty() || tracer == "0") continue;
    return Error(Code::kPermissionDenied,
                 fmt::format("process {} traces thread {} of process {}", tracer, tid, pid_));
  }
  GCR_TRY(process_.send(SIGSTOP));
  stopped_ = true;
  GCR_TRY(procfs::wait_until_stopped(pid_));
  pid_t found = 0;
  for (const pid_t tid : procfs::threads(pid_)) {
    const auto pids = procfs::namespace_pids(std::to_string(pid_) + "/task/" + std::to_string(tid));
    if (!pids.empty() && pids.back() == running) {
      found = tid;
    } else {
      GCR_TRY(seize(tid));
    }
  }
  if (found != 0) return run(found);
  return Error(Code::kNotFound,
               "process " + std::to_string(pid_) + " has no thread " + std::to_string(running));
}

/// Lets a thread run while its process is stopped. No interrupt is needed: a thread that is seized
/// in a stop traps once.
Status HeldThreads::run(pid_t tid) {
  const std::string doing = "cannot continue thread " + std::to_string(tid);
  if (::ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) != 0) return Error::from_errno(errno, doing);
  seized_.insert(tid);
  running_ = tid;
  if (::waitpid(tid, nullptr, __WALL | WNOHANG) != tid) {
    return Error(Code::kUnavailable, doing + ": another process has continued its process");
  }
  // A stop signal that arrived when the process was already stopped is still pending: it is
  // discarded.
  const bool another = stop_is_due(std::to_string(pid_) + "/task/" + std::to_string(tid));
  if (::ptrace(PTRACE_CONT, tid, nullptr, nullptr) != 0) return Error::from_errno(errno, doing);
  if (!another) return {};
  while (::waitpid(tid, nullptr, __WALL) < 0) {
    if (errno != EINTR) return Error::from_errno(errno, doing);
  }
  if (::ptrace(PTRACE_CONT, tid, nullptr, nullptr) == 0) return {};
  return Error::from_errno(errno, doing);
}

Status HeldThreads::seize(pid_t tid) {
  const auto signal_number = stop(tid, 0);
  if (!signal_number && signal_number.error().code() == Code::kNotFound) return {};
  seized_.insert(tid);
  if (!signal_number) {
    return signal_number.error().while_doing("process " + std::to_string(pid_));
  }
  return {};
}

void HeldThreads::release() {
  // Only threads in a ptrace stop can be released.
  if (running_ != 0 && ::ptrace(PTRACE_INTERRUPT, running_, nullptr, nullptr) == 0) {
    while (::waitpid(running_, nullptr, __WALL) < 0 && errno == EINTR) {
    }
  }
  running_ = 0;
  if (stopped_) (void)process_.send(SIGCONT);
  stopped_ = false;
  std::erase_if(seized_, [](pid_t tid) { return detach(tid, 0) || errno != ESRCH; });
  reap(std::exchange(seized_, {}));
}

}  // namespace gcr::tracing

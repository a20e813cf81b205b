// CRIU waits for the next stop of any of its threads in turn (wait4(-1)), and the kernel looks at
// all of them each time: with n threads, n times n looks. Here it is asked for one thread after the
// other, beginning with the one that has run for longest, and for any only if none has stopped.
#include <errno.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "migrate-agent/criu/launch/in_criu.h"

namespace {

/// Threads that CRIU has let run, in that order. For others CRIU only waits more slowly.
class Running {
 public:
  void add(pid_t tid) {
    if (begin_ > 0 && begin_ >= tids_.size() / 2) {
      tids_.drop_first(begin_);
      begin_ = 0;
    }
    (void)tids_.add(tid);
  }

  void remove(pid_t tid) {
    for (std::size_t i = begin_; i < tids_.size(); ++i) {
      if (tids_[i] != tid) continue;
      for (; i > begin_; --i) tids_[i] = tids_[i - 1];  // mostly none
      ++begin_;
      return;
    }
  }

  /// As wait4() of any, of those that have stopped; 0 if none has.
  pid_t find_stopped(int* status, int options, rusage* usage) {
    for (std::size_t left = tids_.size() - begin_; left > 0; --left) {
      const pid_t tid = tids_[begin_++];
      const long seen = syscall(SYS_wait4, tid, status, options | WNOHANG, usage);
      if (seen == tid) return tid;
      if (seen == 0) add(tid);
    }
    return 0;
  }

 private:
  gcr::criu::Growing<pid_t> tids_;
  std::size_t begin_ = 0;  ///< those before are gone
};

Running running;

}  // namespace

EXPORTED long ptrace(__ptrace_request request, ...) noexcept {
  va_list rest;
  va_start(rest, request);  // NOLINT(clang-diagnostic-varargs): glibc's signature
  const pid_t tid = va_arg(rest, pid_t);
  void* const address = va_arg(rest, void*);
  void* data = va_arg(rest, void*);
  va_end(rest);
  long word = 0;
  const bool peeks =
      request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER;
  if (peeks) data = &word;  // unlike the library's function, the kernel's stores what it has read
  const long result = syscall(SYS_ptrace, request, tid, address, data);
  if (result < 0) return result;
  if (request == PTRACE_CONT || request == PTRACE_SYSCALL) running.add(tid);
  if (!peeks) return result;
  errno = 0;
  return word;
}

EXPORTED pid_t wait4(pid_t pid, int* status, int options, rusage* usage) {
  const bool any = pid == -1 && options == __WALL;
  pid_t seen = any ? running.find_stopped(status, options, usage) : 0;
  if (seen > 0) return seen;
  seen = static_cast<pid_t>(syscall(SYS_wait4, pid, status, options, usage));
  if (seen > 0) running.remove(seen);
  return seen;
}

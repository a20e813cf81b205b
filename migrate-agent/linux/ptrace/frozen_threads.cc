// Each FrozenThreads runs a Tracer in a thread of its own: it seizes, reports the number of
// threads, waits for the order how to end (std::promise<End>), and releases.
#include "migrate-agent/linux/ptrace/frozen_threads.h"

#include <errno.h>
#include <signal.h>
#include <sys/ptrace.h>

#include <future>
#include <map>
#include <string>
#include <utility>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/linux/ptrace/tracing.h"
#include "src/base/side_by_side.h"

namespace gcr::tracing {
namespace {

struct End {
  bool stop = false;
  std::function<Status()> freeze;  ///< may be empty
};

std::string task_name(pid_t pid, pid_t tid) {
  return std::to_string(pid) + "/task/" + std::to_string(tid);
}

/// Seizes, holds and releases the threads. All of it runs in one thread, the tracer.
class Tracer {
 public:
  explicit Tracer(std::vector<procfs::Process> processes) : processes_(std::move(processes)) {}

  /// Seizes all threads but `running`, and continues the processes. On failure all are stopped as
  /// before.
  Status seize(const std::set<pid_t>& running, const std::function<Status()>& thaw) {
    Status status = seize_all(running);
    if (status && thaw) status = thaw();
    if (status) status = send(SIGCONT);
    if (!status) (void)release({.stop = true, .freeze = {}});
    return status;
  }

  Status release(const End& end) {
    Status status;
    if (end.stop) status = send(SIGSTOP);
    if (status && end.freeze) status = end.freeze();
    for (const auto& [tid, signal_number] : held_) {
      // A thread that has meanwhile ended (its process was killed) needs nothing.
      if (!tracing::detach(tid, signal_number) && errno != ESRCH && status) {
        status = Error::from_errno(errno, "cannot detach from thread " + std::to_string(tid));
      }
    }
    held_.clear();
    for (const procfs::Process& process : processes_) {
      if (!status) break;
      if (end.stop && !end.freeze) {
        status = procfs::wait_until_stopped(process.pid());
      } else if (procfs::state(std::to_string(process.pid())) == '\0') {
        status = Error(Code::kNotFound, "process " + std::to_string(process.pid()) + " is gone");
      }
    }
    return status;
  }

  std::size_t count() const { return held_.size(); }

 private:
  Status send(int signal_number) {
    for (const procfs::Process& process : processes_) GCR_TRY(process.send(signal_number));
    return {};
  }

  Status seize_all(const std::set<pid_t>& running) {
    std::set<pid_t> missing = running;
    // The threads are stopped, so one pass should do; a second one that finds nothing new proves
    // it.
    for (bool found_new = true; found_new;) {
      const std::size_t before = held_.size();
      for (const procfs::Process& process : processes_) {
        GCR_TRY(seize_threads(process.pid(), running, missing));
      }
      found_new = held_.size() != before;
    }
    if (missing.empty()) return {};
    return Error(Code::kNotFound, "process " + std::to_string(processes_.front().pid()) +
                                      " has no thread " + std::to_string(*missing.begin()));
  }

  /// Asks all threads of the process to stop before it waits for any of them.
  Status seize_threads(pid_t pid, const std::set<pid_t>& running, std::set<pid_t>& missing) {
    std::vector<pid_t> seized;
    Status status;
    for (const auto& [tid, inner] : new_threads(pid)) {
      if (inner == 0) continue;  // the thread has ended
      if (running.contains(inner)) {
        missing.erase(inner);
        continue;
      }
      const Status one = tracing::seize(tid, PTRACE_O_EXITKILL);
      if (!one && one.error().code() == Code::kNotFound) continue;
      held_[tid] = 0;
      if (!one) {
        status = one;
        break;
      }
      seized.push_back(tid);
    }
    for (const pid_t tid : seized) {
      const auto signal_number = tracing::wait_until_stopped(tid);
      if (signal_number) {
        held_[tid] = *signal_number;
      } else if (signal_number.error().code() == Code::kNotFound) {
        held_.erase(tid);
      } else if (status) {
        status = signal_number.error();
      }
    }
    if (status) return {};
    return status.error().while_doing("process " + std::to_string(pid));
  }

  /// Returns the threads that are not held, with their ids in their own PID namespace.
  std::vector<std::pair<pid_t, pid_t>> new_threads(pid_t pid) const {
    std::vector<std::pair<pid_t, pid_t>> threads;
    for (const pid_t tid : procfs::threads(pid)) {
      if (!held_.contains(tid)) threads.emplace_back(tid, 0);
    }
    (void)share_out_brief(threads.size(), [&](std::size_t i) -> Status {
      auto& [tid, inner] = threads[i];
      const auto pids = procfs::namespace_pids(task_name(pid, tid));
      if (!pids.empty()) inner = pids.back();
      return {};
    });
    return threads;
  }

  const std::vector<procfs::Process> processes_;
  std::map<pid_t, int> held_;  ///< thread id -> signal to deliver when it is released
};

}  // namespace

struct FrozenThreads::Impl {
  std::promise<End> end;
  std::future<Status> ended;  ///< of the tracer's thread
  std::size_t count = 0;

  Status finish(const End& how) {
    if (!ended.valid()) return Error(Code::kInvalidArgument, "the threads were released before");
    end.set_value(how);
    return ended.get();
  }

  ~Impl() { (void)finish({.stop = true, .freeze = {}}); }
};

FrozenThreads::FrozenThreads(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FrozenThreads::FrozenThreads(FrozenThreads&&) noexcept = default;
FrozenThreads& FrozenThreads::operator=(FrozenThreads&&) noexcept = default;
FrozenThreads::~FrozenThreads() = default;

Result<FrozenThreads> FrozenThreads::seize(const std::vector<procfs::Process>& processes,
                                           const std::set<pid_t>& running,
                                           const std::function<Status()>& thaw) {
  auto impl = std::make_unique<Impl>();
  std::promise<Result<std::size_t>> seized;
  auto when_seized = seized.get_future();
  impl->ended = std::async(std::launch::async,
                           [processes, running, thaw, seized = std::move(seized),
                            end = impl->end.get_future()]() mutable -> Status {
                             Tracer tracer(processes);
                             if (const Status status = tracer.seize(running, thaw); !status) {
                               seized.set_value(status.error());
                               return status;
                             }
                             seized.set_value(tracer.count());
                             return tracer.release(end.get());
                           });
  GCR_ASSIGN(impl->count, when_seized.get());
  return FrozenThreads(std::move(impl));
}

Status FrozenThreads::release() { return impl_->finish({}); }
Status FrozenThreads::stop_again(const std::function<Status()>& freeze) {
  return impl_->finish({.stop = true, .freeze = freeze});
}
std::size_t FrozenThreads::count() const { return impl_->count; }

}  // namespace gcr::tracing

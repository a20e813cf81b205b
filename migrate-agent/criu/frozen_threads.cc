#include "migrate-agent/criu/frozen_threads.h"

#include <errno.h>
#include <signal.h>
#include <sys/ptrace.h>

#include <future>
#include <map>
#include <string>

#include "migrate-agent/criu/tracing.h"
#include "migrate-agent/procfs/procfs.h"

namespace gcr::criu {
namespace {

struct End {
  bool stop = false;
  std::function<Status()> freeze;  ///< may be empty
};

std::string task_name(pid_t pid, pid_t tid) {
  return std::to_string(pid) + "/task/" + std::to_string(tid);
}

/// The tracer: all of it runs in one thread.
class Tracer {
 public:
  explicit Tracer(procfs::Process process) : process_(std::move(process)) {}

  /// On failure the process is as it was.
  Status seize(const std::set<pid_t>& running, const std::function<Status()>& thaw) {
    Status status = seize_all(running);
    if (status && thaw) status = thaw();
    if (status) status = process_.send(SIGCONT);
    if (!status) (void)let_go({.stop = true, .freeze = {}});
    return status;
  }

  Status let_go(const End& end) {
    Status status;
    if (end.stop) status = process_.send(SIGSTOP);
    if (status && end.freeze) status = end.freeze();
    for (const auto& [tid, signal_number] : held_) {
      // A thread that has meanwhile ended (its process was killed) needs nothing.
      if (!tracing::let_go(tid, signal_number) && errno != ESRCH && status) {
        status = Error::from_errno(errno, "cannot let go of thread " + std::to_string(tid));
      }
    }
    held_.clear();
    if (end.stop && !end.freeze && status) return procfs::wait_until_stopped(pid_);
    if (status && procfs::state(std::to_string(pid_)) == '\0') {
      return Error(Code::kNotFound, "process " + std::to_string(pid_) + " is gone");
    }
    return status;
  }

  std::size_t count() const { return held_.size(); }

 private:
  Status seize_all(const std::set<pid_t>& running) {
    std::set<pid_t> missing = running;
    // The process is stopped, so one pass should do; a second one that finds nothing new proves it.
    for (bool found_new = true; found_new;) {
      found_new = false;
      for (const pid_t tid : procfs::threads(pid_)) {
        if (held_.contains(tid)) continue;
        const auto pids = procfs::namespace_pids(task_name(pid_, tid));
        if (pids.empty()) continue;  // it ended
        if (running.contains(pids.back())) {
          missing.erase(pids.back());
          continue;
        }
        GCR_TRY(seize_one(tid));
        found_new = found_new || held_.contains(tid);
      }
    }
    if (!missing.empty()) {
      return Error(Code::kNotFound, "process " + std::to_string(pid_) + " has no thread " +
                                        std::to_string(*missing.begin()));
    }
    return {};
  }

  Status seize_one(pid_t tid) {
    auto signal_number = tracing::stop(tid, PTRACE_O_EXITKILL);
    if (!signal_number) {
      if (signal_number.error().code() == Code::kNotFound) return {};
      held_[tid] = 0;
      return signal_number.error().while_doing("process " + std::to_string(pid_));
    }
    held_[tid] = *signal_number;
    return {};
  }

  const procfs::Process process_;
  const pid_t pid_ = process_.pid();
  std::map<pid_t, int> held_;  ///< thread id -> signal to deliver when it goes on
};

}  // namespace

struct FrozenThreads::Impl {
  std::promise<End> end;
  std::future<Status> ended;  ///< of the tracer's thread
  std::size_t count = 0;

  Status finish(const End& how) {
    if (!ended.valid()) return Error(Code::kInvalidArgument, "the threads were let go before");
    end.set_value(how);
    return ended.get();
  }

  ~Impl() { (void)finish({.stop = true, .freeze = {}}); }
};

FrozenThreads::FrozenThreads(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FrozenThreads::FrozenThreads(FrozenThreads&&) noexcept = default;
FrozenThreads& FrozenThreads::operator=(FrozenThreads&&) noexcept = default;
FrozenThreads::~FrozenThreads() = default;

Result<FrozenThreads> FrozenThreads::seize(const procfs::Process& process,
                                           const std::set<pid_t>& running,
                                           const std::function<Status()>& thaw) {
  auto impl = std::make_unique<Impl>();
  std::promise<Result<std::size_t>> seized;
  auto when_seized = seized.get_future();
  impl->ended = std::async(std::launch::async,
                           [process, running, thaw, seized = std::move(seized),
                            end = impl->end.get_future()]() mutable -> Status {
                             Tracer tracer(process);
                             if (const Status status = tracer.seize(running, thaw); !status) {
                               seized.set_value(status.error());
                               return status;
                             }
                             seized.set_value(tracer.count());
                             return tracer.let_go(end.get());
                           });
  GCR_ASSIGN(impl->count, when_seized.get());
  return FrozenThreads(std::move(impl));
}

Status FrozenThreads::release() { return impl_->finish({}); }
Status FrozenThreads::stop_again(const std::function<Status()>& freeze) {
  return impl_->finish({.stop = true, .freeze = freeze});
}
std::size_t FrozenThreads::count() const { return impl_->count; }

}  // namespace gcr::criu

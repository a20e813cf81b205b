// Processes that stand still, held by tracers of ours, so that their threads can be made to work
// one by one.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "migrate-agent/criu/threads/apart.h"
#include "migrate-agent/criu/threads/landlock.h"
#include "migrate-agent/criu/threads/thread_calls.h"
#include "src/base/result.h"

namespace gcr::criu {

/// How processes stand still after a dump or a restore: stopped, and in a group that is frozen.
/// Their threads run for moments, one by one, and only for the agent.
struct Standstill {
  std::function<Status()> thaw;    ///< empty if they are in no such group
  std::function<Status()> freeze;  ///< likewise
  bool traceable = false;          ///< threads of the frozen group can be seized (version 2)
};

/// A thread, when it was listed.
struct ListedThread {
  std::size_t process;  ///< its place
  pid_t tid;
  pid_t inner = 0;  ///< its id in the process's own PID namespace
  bool seccomp = false;
  Owner owner{};
  std::string store_bypass{};     ///< in the words of its status in /proc
  std::string indirect_branch{};  ///< likewise
};

/// All threads of processes that stand still.
std::vector<ListedThread> list_threads(const std::vector<pid_t>& processes);

/// A thread that does not run, held by a tracer of ours.
struct Held {
  const ListedThread* thread;
  ThreadCalls calls;
  bool first = false;  ///< that can make calls, of its process
};

/// Several tracers that hold all threads of processes that stand still, each its share of them, in
/// their order. What it is made of must outlive it.
class Holding {
 public:
  using Work = std::function<Status(std::vector<Held>& share, Meeting& others)>;

  Holding(const std::vector<pid_t>& processes, const std::vector<ListedThread>& threads,
          const Standstill& standstill);

  /// While all threads are held, none but those that work for us can run, whoever continues them.
  /// `work` is called by each tracer.
  Status with_all_held(const Work& work);

 private:
  Status find_call_sites();
  Status hold_and_work(std::size_t tracer, Meeting& others, const Work& work);
  Status hold_share(std::size_t tracer);
  bool is_gone(const Error& error, const ListedThread& thread) const;
  Status check_complete() const;
  void mark_first();

  const std::vector<pid_t>& processes_;
  const std::vector<ListedThread>& threads_;
  const Standstill& standstill_;
  const std::size_t tracers_;
  std::vector<std::shared_ptr<const CallSite>> sites_;  ///< of each process that has not ended
  std::vector<std::vector<Held>> shares_;               ///< of each tracer
};

}  // namespace gcr::criu

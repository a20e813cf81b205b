// Stopped processes, held by tracers of the agent, which make their threads work one by one.
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

/// How processes are kept from running after a dump or a restore: stopped, and in a frozen group.
/// Their threads run for moments, one by one, and only for the agent.
struct Standstill {
  std::function<Status()> thaw;    ///< empty if they are in no such group
  std::function<Status()> freeze;  ///< empty in the same case
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
  std::string indirect_branch{};  ///< as store_bypass
};

/// All threads of stopped processes.
std::vector<ListedThread> list_threads(const std::vector<pid_t>& processes);

/// A thread that does not run, held by a tracer of ours.
struct Held {
  const ListedThread* thread;
  std::unique_ptr<ThreadCalls> calls;
  bool first = false;  ///< that can make calls, of its process
};

/// Several tracers that hold all threads of stopped processes, each its share of them, in their
/// order. What it is made of must outlive it.
class Holding {
 public:
  using Work = std::function<Status(std::vector<Held>& share, Meeting& others)>;

  Holding(const std::vector<pid_t>& processes, const std::vector<ListedThread>& threads,
          const Standstill& standstill);

  /// While all threads are held, only those that work for the agent can run, even if another
  /// process continues them. `work` is called by each tracer.
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

#include "migrate-agent/criu/threads/held_processes.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "migrate-agent/linux/procfs/procfs.h"
#include "src/base/side_by_side.h"

namespace gcr::criu {
namespace {

void read_status(pid_t pid, ListedThread& thread) {
  auto status = procfs::status_fields(fmt::format("{}/task/{}", pid, thread.tid));
  thread.inner = procfs::innermost_pid(status);
  thread.seccomp = status["Seccomp"] != "0";
  thread.owner = owner_of(status);
  thread.store_bypass = status["Speculation_Store_Bypass"];
  thread.indirect_branch = status["SpeculationIndirectBranch"];
}

std::size_t tracers_for(std::size_t threads) {
  constexpr std::size_t kWorthwhile = 32;  // threads for a tracer
  constexpr std::size_t kMost = 16;
  const std::size_t processors = std::max(1u, std::thread::hardware_concurrency());
  return std::clamp<std::size_t>(threads / kWorthwhile, 1, std::min(kMost, processors));
}

}  // namespace

std::vector<ListedThread> list_threads(const std::vector<pid_t>& processes) {
  std::vector<ListedThread> threads;
  for (std::size_t i = 0; i < processes.size(); ++i) {
    if (procfs::has_ended(processes[i])) continue;
    for (const pid_t tid : procfs::threads(processes[i])) threads.push_back({i, tid});
  }
  (void)share_out_brief(threads.size(), [&](std::size_t i) -> Status {
    read_status(processes[threads[i].process], threads[i]);
    return {};
  });
  std::erase_if(threads, [](const ListedThread& thread) { return thread.inner == 0; });
  return threads;
}

Holding::Holding(const std::vector<pid_t>& processes, const std::vector<ListedThread>& threads,
                 const Standstill& standstill)
    : processes_(processes),
      threads_(threads),
      standstill_(standstill),
      tracers_(tracers_for(threads.size())),
      shares_(tracers_) {}

Status Holding::with_all_held(const Work& work) {
  GCR_TRY(find_call_sites());
  Status done = run_apart(tracers_, [&](std::size_t tracer, Meeting& others) {
    (void)hold_and_work(tracer, others, work);  // its error stays with the meeting
    const bool freezes = tracer == 0 && standstill_.freeze;
    const Status all = others.meet(freezes ? standstill_.freeze() : Status());
    shares_[tracer].clear();
    return all;
  });
  for (const pid_t pid : processes_) {
    if (standstill_.freeze || procfs::has_ended(pid)) continue;
    const Status stopped = procfs::wait_until_stopped(pid);
    if (done) done = stopped;
  }
  return done;
}

Status Holding::find_call_sites() {
  sites_.resize(processes_.size());
  for (const ListedThread& thread : threads_) {
    if (sites_[thread.process]) continue;
    auto found = CallSite::find(processes_[thread.process]);
    if (!found && found.error().code() != Code::kNotFound) return found.error();
    if (found) sites_[thread.process] = *std::move(found);
  }
  return {};
}

Status Holding::hold_and_work(std::size_t tracer, Meeting& others, const Work& work) {
  const bool in_group = static_cast<bool>(standstill_.freeze);
  GCR_TRY(others.meet(
      {}, [&] { return in_group && !standstill_.traceable ? standstill_.thaw() : Status(); }));
  GCR_TRY(others.meet(hold_share(tracer), [&]() -> Status {
    GCR_TRY(check_complete());
    mark_first();
    return in_group && standstill_.traceable ? standstill_.thaw() : Status();
  }));
  return others.meet(work(shares_[tracer], others));
}

Status Holding::hold_share(std::size_t tracer) {
  std::vector<Held>& share = shares_[tracer];
  const std::size_t end = threads_.size() * (tracer + 1) / tracers_;
  for (std::size_t i = threads_.size() * tracer / tracers_; i < end; ++i) {
    const ListedThread& thread = threads_[i];
    if (!sites_[thread.process]) continue;
    auto calls = ThreadCalls::seize(sites_[thread.process], thread.tid, thread.seccomp);
    if (!calls && is_gone(calls.error(), thread)) continue;
    if (!calls) return calls.error();
    share.push_back({&thread, std::move(*calls)});
  }
  std::vector<Held> held;
  for (Held& one : share) {
    const Status stopped = one.calls->wait_until_stopped();
    if (!stopped && !is_gone(stopped.error(), *one.thread)) return stopped;
    if (stopped) held.push_back(std::move(one));
  }
  share = std::move(held);
  return {};
}

bool Holding::is_gone(const Error& error, const ListedThread& thread) const {
  if (error.code() == Code::kNotFound) return true;
  const auto stat =
      procfs::read_stat(fmt::format("{}/task/{}", processes_[thread.process], thread.tid));
  return !stat || procfs::is_exiting(*stat);
}

/// No thread was started since they were listed.
Status Holding::check_complete() const {
  std::set<pid_t> listed;
  for (const ListedThread& thread : threads_) listed.insert(thread.tid);
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    if (!sites_[i]) continue;
    for (const pid_t tid : procfs::threads(processes_[i])) {
      if (listed.contains(tid)) continue;
      return Error(Code::kUnavailable,
                   fmt::format("thread {} of process {} was started while the process was stopped",
                               tid, processes_[i]));
    }
  }
  return {};
}

void Holding::mark_first() {
  std::set<std::size_t> marked;
  for (std::vector<Held>& share : shares_) {
    for (Held& held : share) {
      held.first = held.calls->can_call() && marked.insert(held.thread->process).second;
    }
  }
}

}  // namespace gcr::criu

#include "migrate-agent/linux/procfs/process_handle.h"

#include <errno.h>
#include <signal.h>

#include <algorithm>
#include <string>

#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::procfs {
namespace {

constexpr unsigned long kEnding = 0x4 | 0x400;  // PF_EXITING and PF_SIGNALED of the kernel

/// Returns whether a thread is ending. A thread of a frozen group that got SIGKILL ends only when
/// the group is thawed.
bool is_thread_ending(const std::string& task) {
  constexpr std::uint64_t kKill = std::uint64_t{1} << (SIGKILL - 1);
  if ((status_bits(task, "SigPnd") & kKill) != 0) return true;
  const auto stat = read_stat(task);
  return !stat || (stat->flags & kEnding) != 0;
}

}  // namespace

Process::Process(pid_t pid, std::uint64_t start_time, UniqueFd pidfd)
    : pid_(pid),
      start_time_(start_time),
      pidfd_(std::make_shared<const UniqueFd>(std::move(pidfd))) {}

Result<Process> Process::open(pid_t pid) {
  GCR_ASSIGN(UniqueFd pidfd, open_pidfd(pid));
  const auto stat = read_stat(pid);
  Process process(pid, stat.value_or(Stat()).start_time, std::move(pidfd));
  // If the process was not reaped before, the stat is its own and not that of a successor.
  if (stat && process.send(0)) return process;
  return Error(Code::kNotFound, "process " + std::to_string(pid) + " has ended");
}

Result<Process> Process::open(pid_t pid, std::uint64_t start_time) {
  GCR_ASSIGN(Process process, open(pid));
  if (process.start_time() == start_time) return process;
  return Error(Code::kNotFound, "PID " + std::to_string(pid) + " now belongs to another process");
}

bool Process::has_ended() const { return ends_within(std::chrono::milliseconds(0)); }

bool Process::ends_within(std::chrono::milliseconds patience) const {
  pollfd ended{pidfd(), POLLIN, 0};
  return any_ends_within({&ended, 1}, patience);
}

bool any_ends_within(std::span<pollfd> pidfds, std::chrono::milliseconds patience) {
  if (pidfds.empty()) return false;
  int ready = -1;
  while (ready < 0) {
    ready = ::poll(pidfds.data(), pidfds.size(), static_cast<int>(patience.count()));
    if (ready < 0 && errno != EINTR) return false;
  }
  return ready > 0;
}

bool Process::is_ending() const {
  const std::vector<pid_t> tids = threads(pid_);
  const bool all = std::ranges::all_of(tids, [this](pid_t tid) {
    return is_thread_ending(std::to_string(pid_) + "/task/" + std::to_string(tid));
  });
  // An empty list means that the threads cannot be read, not that they are ending.
  return (all && !tids.empty()) || has_ended();
}

Status Process::send(int signal_number) const {
  if (send_signal(pidfd(), signal_number)) return {};
  const std::string doing = "cannot signal process " + std::to_string(pid_);
  if (errno == ESRCH) return Error(Code::kNotFound, doing + ": it is gone");
  return Error::from_errno(errno, doing);
}

Status Process::wait_until_ended(std::chrono::milliseconds limit) const {
  if (ends_within(limit)) return {};
  return Error(Code::kTimeout,
               "process " + std::to_string(pid_) + " was killed, but has not ended within " +
                   std::to_string(limit.count()) + " ms: another process may be tracing it");
}

std::vector<Process> open_tree(const Process& root) {
  std::vector<Process> processes{root};
  for (const pid_t pid : tree(root.pid())) {
    if (pid == root.pid()) continue;
    auto process = Process::open(pid);
    if (process) processes.push_back(std::move(*process));
  }
  const std::vector<pid_t> still = tree(root.pid());
  std::erase_if(processes, [&](const Process& process) {
    return std::ranges::find(still, process.pid()) == still.end();
  });
  return processes;
}

}  // namespace gcr::procfs

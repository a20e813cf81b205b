#include "migrate-agent/process/process_handle.h"

#include <errno.h>
#include <poll.h>

#include <cstdlib>
#include <string>

#include "migrate-agent/process/procfs.h"

namespace gcr::procfs {
namespace {

constexpr int kStartTimeField = 22;

}  // namespace

Process::Process(pid_t pid, std::uint64_t start_time, UniqueFd pidfd)
    : pid_(pid),
      start_time_(start_time),
      pidfd_(std::make_shared<const UniqueFd>(std::move(pidfd))) {}

Result<Process> Process::open(pid_t pid) {
  GCR_ASSIGN(UniqueFd pidfd, open_pidfd(pid));
  const std::string started = stat_field(std::to_string(pid), kStartTimeField);
  Process process(pid, std::strtoull(started.c_str(), nullptr, 10), std::move(pidfd));
  // What was read is this one's if it was not reaped before.
  if (!started.empty() && process.send(0)) return process;
  return Error(Code::kNotFound, "process " + std::to_string(pid) + " has ended");
}

Result<Process> Process::open(pid_t pid, std::uint64_t start_time) {
  GCR_ASSIGN(Process process, open(pid));
  if (process.start_time() == start_time) return process;
  return Error(Code::kNotFound, "process " + std::to_string(pid) + " is another one by now");
}

bool Process::has_ended() const {
  pollfd ended{pidfd(), POLLIN, 0};
  return ::poll(&ended, 1, 0) > 0;
}

Status Process::send(int signal_number) const {
  if (send_signal(pidfd(), signal_number)) return {};
  const std::string doing = "cannot signal process " + std::to_string(pid_);
  if (errno == ESRCH) return Error(Code::kNotFound, doing + ": it is gone");
  return Error::from_errno(errno, doing);
}

void Process::wait_until_ended() const {
  pollfd ended{pidfd(), POLLIN, 0};
  while (::poll(&ended, 1, -1) < 0 && errno == EINTR) {
  }
}

}  // namespace gcr::procfs

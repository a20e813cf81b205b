// The process at the destination.
#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>

#include <cstdlib>
#include <string>

#include "migrate-agent/criu/criu.h"
#include "migrate-agent/process/procfs.h"
#include "migrate-agent/recovery/recovery.h"

namespace gcr::recovery {
namespace {

/// kNotFound for a process that has ended, reaped or not.
Result<UniqueFd> open_living(const journal::ProcessId& id) {
  GCR_ASSIGN(UniqueFd process, procfs::open_pidfd(id.pid(), id.start_time()));
  pollfd ended{process.get(), POLLIN, 0};
  if (::poll(&ended, 1, 0) <= 0) return process;
  return Error(Code::kNotFound, fmt::format("process {} has ended", id.pid()));
}

/// A task in a frozen group dies of SIGKILL only when the group is thawed, but runs no more code.
bool is_being_killed(pid_t pid) {
  const std::string pending = procfs::status_field(std::to_string(pid), "SigPnd");
  return (std::strtoull(pending.c_str(), nullptr, 16) & (1ULL << (SIGKILL - 1))) != 0;
}

/// Kills it if it lives, and waits for its end.
Status kill_and_wait(const journal::ProcessId& id) {
  const auto process = open_living(id);
  if (!process && process.error().code() == Code::kNotFound) return {};
  GCR_TRY(process);
  if (!procfs::send_signal(process->get(), SIGKILL) && errno != ESRCH) {
    return Error::from_errno(errno, fmt::format("cannot kill process {}", id.pid()));
  }
  pollfd ended{process->get(), POLLIN, 0};
  while (::poll(&ended, 1, -1) < 0 && errno == EINTR) {
  }
  return {};
}

}  // namespace

Status find_restored(const journal::ProcessId& process, const journal::ProcessId& init) {
  for (const journal::ProcessId* part : {&init, &process}) {
    GCR_TRY(open_living(*part));
    if (is_being_killed(part->pid())) {
      return Error(Code::kNotFound, fmt::format("process {} was killed", part->pid()));
    }
  }
  return {};
}

Status resume_restored(const journal::ProcessId& process, const journal::ProcessId& init) {
  GCR_TRY(find_restored(process, init));
  return criu::resume_stopped(process.pid());
}

Status destroy_restored(const journal::ProcessId& process, const journal::ProcessId& init) {
  // An init's end is that of its whole namespace.
  GCR_TRY(kill_and_wait(init));
  return kill_and_wait(process);
}

}  // namespace gcr::recovery

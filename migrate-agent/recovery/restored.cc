// The process at the destination.
#include <fmt/format.h>
#include <signal.h>

#include <vector>

#include "migrate-agent/criu/criu.h"
#include "migrate-agent/procfs/process_handle.h"
#include "migrate-agent/procfs/procfs.h"
#include "migrate-agent/recovery/recovery.h"

namespace gcr::recovery {
namespace {

/// kNotFound for a process that has ended, reaped or not.
Result<procfs::Process> open_living(const journal::ProcessId& id) {
  GCR_ASSIGN(auto process, procfs::Process::open(id.pid(), id.start_time()));
  if (!process.has_ended()) return process;
  return Error(Code::kNotFound, fmt::format("process {} has ended", id.pid()));
}

struct Pair {
  procfs::Process init;
  procfs::Process process;
};

Result<Pair> open_pair(const journal::Restored& restored) {
  auto init = open_living(restored.init());
  auto process = open_living(restored.members(0));
  if (init && process) return Pair{std::move(*init), std::move(*process)};
  return (init ? process : init)
      .error()
      .while_doing(fmt::format("cannot resume process {}", restored.members(0).pid()));
}

}  // namespace

Status find_restored(const journal::Restored& restored) {
  GCR_ASSIGN(const Pair found, open_pair(restored));
  if (!found.init.is_ending() && !found.process.is_ending()) return {};
  return Error(Code::kNotFound, fmt::format("process {} is ending", found.process.pid()));
}

Status resume_restored(const journal::Restored& restored, const cgroups::Group& group) {
  GCR_ASSIGN(const Pair found, open_pair(restored));
  GCR_TRY(criu::resume_stopped(found.process));
  return group.thaw();
}

Status destroy_restored(const journal::Restored& restored, const cgroups::Group& group) {
  // When an init ends, so does its whole namespace. Only killed processes are thawed.
  std::vector<procfs::Process> killed;
  for (const journal::ProcessId* id : {&restored.init(), &restored.members(0)}) {
    auto process = open_living(*id);
    if (!process && process.error().code() == Code::kNotFound) continue;
    GCR_TRY(process);
    const Status sent = process->send(SIGKILL);
    if (!sent && sent.error().code() != Code::kNotFound) return sent;
    killed.push_back(std::move(*process));
  }
  GCR_TRY(group.destroy());
  for (const procfs::Process& process : killed) process.wait_until_ended();
  return {};
}

}  // namespace gcr::recovery

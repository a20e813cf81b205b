// The restored members at the destination: checks, resumes or destroys them.
#include <fmt/format.h>
#include <signal.h>

#include <span>
#include <vector>

#include "migrate-agent/criu/runs/criu.h"
#include "migrate-agent/linux/procfs/process_handle.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/migration/undo/recovery.h"

namespace gcr::undo {
namespace {

/// Opens a process. kNotFound if it has ended, reaped or not.
Result<procfs::Process> open_living(const journal::ProcessId& id) {
  GCR_ASSIGN(auto process, procfs::Process::open(id.pid(), id.start_time()));
  if (!process.has_ended()) return process;
  return Error(Code::kNotFound, fmt::format("process {} has ended", id.pid()));
}

/// Gives the init of the members' namespace, then the members.
std::vector<journal::ProcessId> all_of(const journal::Restored& restored) {
  std::vector<journal::ProcessId> all{restored.init()};
  all.insert(all.end(), restored.members().begin(), restored.members().end());
  return all;
}

Result<std::vector<procfs::Process>> open_all(const journal::Restored& restored) {
  std::vector<procfs::Process> found;
  for (const journal::ProcessId& id : all_of(restored)) {
    auto process = open_living(id);
    if (!process) {
      return process.error().while_doing(
          fmt::format("cannot resume process {}", restored.members(0).pid()));
    }
    found.push_back(std::move(*process));
  }
  return found;
}

}  // namespace

Status find_restored(const journal::Restored& restored) {
  GCR_ASSIGN(const auto found, open_all(restored));
  for (const procfs::Process& process : found) {
    if (!process.is_ending()) continue;
    return Error(Code::kNotFound, fmt::format("process {} is ending", process.pid()));
  }
  return {};
}

Status resume_restored(const journal::Restored& restored, const cgroups::Group& group) {
  GCR_ASSIGN(const auto found, open_all(restored));
  for (const procfs::Process& member : std::span(found).subspan(1)) {
    GCR_TRY(criu::resume_stopped(member));
  }
  return group.thaw();
}

Status destroy_restored(const journal::Restored& restored, const cgroups::Group& group) {
  // The kernel ends the whole namespace with its init. Only killed processes are thawed.
  std::vector<procfs::Process> killed;
  for (const journal::ProcessId& id : all_of(restored)) {
    auto process = open_living(id);
    if (!process && process.error().code() == Code::kNotFound) continue;
    GCR_TRY(process);
    const Status sent = process->send(SIGKILL);
    if (!sent && sent.error().code() != Code::kNotFound) return sent;
    killed.push_back(std::move(*process));
  }
  GCR_TRY(group.destroy());
  for (const procfs::Process& process : killed) GCR_TRY(process.wait_until_ended());
  return {};
}

}  // namespace gcr::undo

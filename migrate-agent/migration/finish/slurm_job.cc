#include "migrate-agent/migration/finish/slurm_job.h"

#include <fmt/format.h>
#include <poll.h>

#include <set>
#include <vector>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/linux/procfs/process_handle.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/migration/undo/recovery.h"
#include "migrate-agent/process/slurm/folder.h"
#include "src/base/log.h"

namespace gcr::finish {
namespace {

/// A Slurm step that is ending refuses processes for a moment before it is gone.
constexpr int kAttempts = 20;
constexpr int kPauseMs = 100;

Result<bool> lives(const journal::ProcessId& id) {
  const auto process = procfs::Process::open(id.pid(), id.start_time());
  if (process) return !process->has_ended();
  if (process.error().code() == Code::kNotFound) return false;
  return process.error();
}

/// The processes below the init that have not joined the step.
std::vector<pid_t> outside(pid_t init, const slurm::Step& step, const std::set<pid_t>& joined) {
  std::vector<pid_t> found;
  for (const pid_t pid : procfs::tree(init)) {
    if (pid == init || joined.contains(pid) || procfs::has_ended(pid)) continue;
    if (slurm::step_of(pid) != step) found.push_back(pid);
  }
  return found;
}

/// Adds all processes of the copy to the job's extern step. Repeats this until none is outside: a
/// copy that runs may fork meanwhile, and the children of a process that has not joined have not
/// joined either.
Status join_all(const journal::Restored& copy, uid_t owner, slurm::JobId job,
                const slurm::Settings& settings) {
  const slurm::Step step{job, slurm::kExtern};
  std::set<pid_t> joined;
  for (int attempts = 0;;) {
    const auto late = outside(copy.init().pid(), step, joined);
    if (late.empty()) return {};
    const Status added = slurm::join_extern_step(settings, job, owner, late);
    if (added) {
      joined.insert(late.begin(), late.end());
      continue;
    }
    if (added.error().code() != Code::kUnavailable || ++attempts == kAttempts) return added;
    ::poll(nullptr, 0, kPauseMs);
  }
}

void check_tracked(pid_t root, slurm::JobId job) {
  if (slurm::step_of(root) == slurm::Step{job, slurm::kExtern}) return;
  spdlog::warn(
      "Slurm has put process {} into no control group of job {}, so limits and scancel do not "
      "reach it: set ProctrackType=proctrack/cgroup and TaskPlugin=task/cgroup in slurm.conf",
      root, job);
}

}  // namespace

Result<std::string> join_job(const journal::Journal& journal, const journal::Restored& copy,
                             const worker::Config& config, const cgroups::Group& group) {
  const journal::Began& began = journal.began();
  const slurm::JobId job = began.slurm_job();
  if (job == 0) return std::string();
  GCR_TRY(fault::point("destination.joining"));
  GCR_ASSIGN(const bool whole, lives(copy.init()));
  GCR_ASSIGN(const bool has_root, lives(copy.members(0)));
  if (!whole || !has_root) {
    GCR_TRY(slurm::note_lost(config.slurm, job));
    if (!whole) return std::string();
  }
  const Status joined = join_all(copy, began.uid(), job, config.slurm);
  if (!joined && joined.error().code() == Code::kNotFound) {
    GCR_TRY(undo::destroy_restored(copy, group));
    GCR_TRY(slurm::note_lost(config.slurm, job));
    const Error ended = joined.error().while_doing(fmt::format(
        "Slurm job {}, which owned the processes, has ended, so they were killed", job));
    spdlog::error("{}", ended.message());
    return ended.message();
  }
  GCR_TRY(joined);
  if (has_root) {
    check_tracked(copy.members(0).pid(), job);
    GCR_TRY(slurm::note_pid(config.slurm, job, copy.members(0).pid()));
  }
  GCR_TRY(fault::point("destination.joined"));
  return std::string();
}

Status leave_job(const journal::Began& began, const worker::Config& config) {
  if (began.slurm_left() == 0 || !config.slurm.is_set()) return {};
  return slurm::note_moved(config.slurm, began.slurm_left(), began.slurm_job());
}

}  // namespace gcr::finish

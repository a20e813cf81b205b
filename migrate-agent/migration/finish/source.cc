#include "migrate-agent/migration/finish/source.h"

#include <fmt/format.h>

#include <algorithm>

#include "migrate-agent/base/fault/fault.h"
#include "migrate-agent/gpu/keeper/keeper.h"
#include "migrate-agent/linux/procfs/process_handle.h"
#include "migrate-agent/migration/finish/checkpoints.h"
#include "migrate-agent/migration/finish/container.h"
#include "migrate-agent/migration/finish/network.h"
#include "migrate-agent/migration/finish/records.h"
#include "migrate-agent/migration/finish/slurm_job.h"
#include "migrate-agent/process/memory_files/release.h"
#include "src/base/log.h"

// How the source's side of a migration ends, as source.h declares it. Each function first writes
// its decision into the journal, then acts on the processes (migrate-agent/migration/undo), then
// removes files and keepers, and writes Finished last. So a crash between two steps leaves a
// journal from which the next owner repeats the remaining steps, and each step is harmless when
// repeated. A suspended job that is being moved has two journals, the migration's and the
// suspension's; the migration's is finished last.
namespace gcr::finish {
namespace {

using commit::SourceEvent;
using commit::SourceState;
using journal::Record;

/// Ends the keeper of this kind. Success if there is none.
Status end_keeper(const journal::Journal& journal, Kept kept) {
  const auto keeper = keeper_of(journal.records(), kept);
  return keeper ? keeper::end_keeper(*keeper) : Status();
}

/// Ends both keepers, and removes CRIU's directory.
Status clear_helpers(const worker::Config& config, const journal::Journal& journal) {
  for (const Kept kept : {Kept::kVram, Kept::kCopy}) GCR_TRY(end_keeper(journal, kept));
  std::error_code error;
  std::filesystem::remove_all(config.scratch_of(journal.migration()), error);
  if (error) spdlog::warn("cannot remove the image directory: {}", error.message());
  return {};
}

/// The GPUs to which the job resumes, from the record Resuming; empty without that record.
std::vector<device::GpuPair> gpus_of(const journal::Journal& journal) {
  std::vector<device::GpuPair> gpus;
  const Record* resuming = journal.last(Record::kResuming);
  if (resuming == nullptr) return gpus;
  for (const journal::GpuMove& move : resuming->resuming().gpus()) {
    gpus.push_back({to_uuid(move.from()), to_uuid(move.to())});
  }
  return gpus;
}

/// The job as the journal describes it. If a living worker passes its state, no CRIU is running.
undo::Lost lost_by(const worker::Config& config, const journal::Journal& journal,
                   const undo::WorkerState* worker_state) {
  const Record* detaching = journal.last(Record::kDetaching);
  const auto& members = journal::members_of(journal.records());
  std::vector<std::string> homes;
  if (detaching != nullptr) {
    homes.assign(detaching->detaching().homes().begin(), detaching->detaching().homes().end());
  }
  return {.members = {members.begin(), members.end()},
          .keeper = keeper_of(journal.records(), Kept::kVram),
          .detaching = worker_state == nullptr ? detaching != nullptr : worker_state->detaching,
          .scratch = worker_state == nullptr ? config.scratch_of(journal.migration())
                                             : std::filesystem::path(),
          .group = group_of(journal),
          .homes = std::move(homes),
          .driver_alone = detaching == nullptr ? 0 : detaching->detaching().driver_alone(),
          .gpus = gpus_of(journal),
          .sysfs = config.sysfs,
          .reenter_network = [began = journal.began()] { reenter_network(began); }};
}

/// Removes the names of memory files that the migration has made on this host.
Status release_files(const journal::Journal& journal, memory_files::Which which) {
  std::vector<pid_t> pids;
  for (const journal::ProcessId& member : journal.began().members()) {
    const auto process = procfs::Process::open(member.pid(), member.start_time());
    if (process) pids.push_back(member.pid());
  }
  return memory_files::release(journal.path(), host_was_restarted(journal.began()), which, pids);
}

/// Finishes a suspension whose job has ended here or has moved.
Status end_suspension(commit::SourceLog& suspension, const worker::Config& config,
                      const std::string& text) {
  GCR_TRY(clear_helpers(config, suspension.journal()));
  return suspension.advance(SourceEvent::kEnded, finished(text));
}

/// The log of the suspended job that this migration moves; none if the suspension has ended.
Result<std::optional<commit::SourceLog>> open_suspension(const journal::Journal& journal) {
  auto log = commit::SourceLog::open(suspension_of(journal), journal::Lock::kWait);
  if (!log && log.error().code() == Code::kNotFound) return std::nullopt;
  GCR_TRY(log);
  if (log->state() != SourceState::kSuspended) return std::nullopt;
  return std::move(*log);
}

/// Rolls a suspended job back: it stays suspended here. Gives the text for Finished.
Result<std::string> suspend_again(const worker::Config& config, const journal::Journal& journal,
                                  const undo::WorkerState* worker_state) {
  if (!host_was_restarted(journal.began())) {
    GCR_TRY(undo::refreeze_suspended(lost_by(config, journal, worker_state)));
  }
  GCR_ASSIGN(auto suspension, open_suspension(journal));
  if (suspension) GCR_TRY(stay_suspended(*suspension, config));
  const bool stays = suspension && suspension->state() == SourceState::kSuspended;
  return stays ? "the process is suspended here" : "the process has ended";
}

}  // namespace

Result<std::string> roll_back(commit::SourceLog& log, const worker::Config& config, SourceEvent why,
                              Record record, const undo::WorkerState* worker_state) {
  const journal::Began& began = log.journal().began();
  Status noted;
  if (log.state() != SourceState::kAborted) noted = log.advance(why, std::move(record));
  if (!noted) {
    spdlog::error("{}", noted.error().message());
    // Before the commit, the next reader of the journal makes the same decision, so continue.
    if (log.state() == SourceState::kCommitted) return noted.error();
  }
  std::string text = "the process runs here";
  if (began.loads()) {
    text = "nothing was restored";
  } else if (!began.suspension().empty()) {
    GCR_ASSIGN(text, suspend_again(config, log.journal(), worker_state));
  } else if (host_was_restarted(began)) {
    text = "the process ended with the host";
  } else {
    const undo::Lost lost = lost_by(config, log.journal(), worker_state);
    GCR_ASSIGN(const undo::Found found, undo::bring_back(lost, worker_state));
    if (found == undo::Found::kGone) text = "the process has ended";
  }
  GCR_TRY(fault::point("source.recovery.resumed"));
  GCR_TRY(release_files(log.journal(), memory_files::Which::kMade));
  GCR_TRY(clear_helpers(config, log.journal()));
  GCR_TRY(noted);
  return text;
}

Status undo(commit::SourceLog& log, const worker::Config& config, SourceEvent why, Record record,
            const undo::WorkerState* worker_state) {
  GCR_ASSIGN(const std::string text, roll_back(log, config, why, std::move(record), worker_state));
  discard_checkpoint(log.journal());
  end_restore(log.journal(), config.tls, false);
  return log.advance(SourceEvent::kRolledBack, finished(text));
}

Status stay_suspended(commit::SourceLog& log, const worker::Config& config) {
  const journal::Journal& journal = log.journal();
  const bool restarted = host_was_restarted(journal.began());
  GCR_TRY(end_keeper(journal, Kept::kVram));
  const auto& members = journal::members_of(journal.records());
  const cgroups::Group group = group_of(journal);
  if (!restarted && (std::ranges::any_of(members, is_alive) || !group.is_empty())) {
    return group.freeze();
  }
  if (!restarted) GCR_TRY(group.dissolve());
  return end_suspension(log, config,
                        restarted ? "the process ended with the host" : "the process has ended");
}

Status run_again(commit::SourceLog& log, const worker::Config& config) {
  const journal::Journal& journal = log.journal();
  pid_t pid = journal::root_pid(journal.began().members());
  std::string text = "the process runs here";
  undo::Found found = undo::Found::kGone;
  if (!host_was_restarted(journal.began())) {
    GCR_ASSIGN(found, undo::bring_back(lost_by(config, journal, nullptr)));
  }
  if (found == undo::Found::kGone) {
    text = "the process has ended";
    pid = 0;
  }
  GCR_TRY(fault::point("source.resume.running"));
  GCR_TRY(clear_helpers(config, journal));
  return log.advance(SourceEvent::kResumed, finished(text, pid));
}

Status end_copy(commit::SourceLog& log, const worker::Config& config, const std::string& text) {
  const journal::Began& began = log.journal().began();
  if (log.state() == SourceState::kCommitted) {
    GCR_TRY(note_left(began, config));
    if (!takes_checkpoint(began)) GCR_TRY(leave_job(began, config));
  }
  if (!host_was_restarted(began)) GCR_TRY(leave_container(began));
  // Before the members are killed, because their descriptors lead to the files.
  GCR_TRY(release_files(log.journal(), memory_files::Which::kAll));
  if (!host_was_restarted(began) && !began.loads()) {
    GCR_TRY(undo::end_stopped(
        {began.members().begin(), began.members().end()}, group_of(log.journal()),
        began.has_network() ? undo::Peers::kSeeNothing : undo::Peers::kSeeTheEnd));
  }
  GCR_TRY(clear_helpers(config, log.journal()));
  GCR_TRY(fault::point("source.killed"));
  if (!began.suspension().empty()) {
    GCR_ASSIGN(auto suspension, open_suspension(log.journal()));
    if (suspension) GCR_TRY(end_suspension(*suspension, config, text));
    GCR_TRY(fault::point("source.suspension.ended"));
  }
  const bool discarded = log.state() == SourceState::kDiscarded;
  if (!discarded) end_restore(log.journal(), config.tls, true);
  return log.advance(discarded ? SourceEvent::kCleared : SourceEvent::kCommitConfirmed,
                     finished(text));
}

Status settle(commit::SourceLog& log, const worker::Config& config,
              const commit::CommitAnswer& answer, const undo::WorkerState* worker_state) {
  if (const auto* lost = std::get_if<Error>(&answer)) {
    return undo(log, config, SourceEvent::kCopyLost, aborted(*lost), worker_state);
  }
  GCR_TRY(fault::point("source.confirmed"));
  const journal::Began& began = log.journal().began();
  if (takes_checkpoint(began)) {
    return end_copy(log, config, fmt::format("the checkpoint {} is complete", began.checkpoint()));
  }
  return end_copy(log, config,
                  fmt::format("process {} {} at {}", std::get<proto::CommitReply>(answer).pid(),
                              began.suspension().empty() ? "runs" : "is suspended", began.peer()));
}

}  // namespace gcr::finish

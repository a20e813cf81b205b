#include "migrate-agent/migration/finish/destination.h"

#include "migrate-agent/commit/journal/held_files.h"
#include "migrate-agent/gpu/keeper/keeper.h"
#include "migrate-agent/linux/procfs/process_handle.h"
#include "migrate-agent/migration/finish/container.h"
#include "migrate-agent/migration/finish/network.h"
#include "migrate-agent/migration/finish/records.h"
#include "migrate-agent/migration/finish/slurm_job.h"
#include "migrate-agent/migration/undo/recovery.h"
#include "migrate-agent/process/memory_files/release.h"

namespace gcr::finish {
namespace {

using commit::DestinationEvent;
using commit::DestinationState;

Status find_copy(const commit::DestinationLog& log) {
  if (host_was_restarted(log.journal().began())) {
    return Error(Code::kNotFound, "the destination's host was restarted");
  }
  return undo::find_restored(copy_of(log));
}

/// Moves the copy from its group `from` into `to`, the frozen group of the suspension. The init of
/// the copy's namespace stays in `from`, to which a resume returns the copy.
Status move_copy(const journal::Restored& copy, const cgroups::Group& from,
                 const cgroups::Group& to) {
  GCR_TRY(to.create());
  GCR_TRY(to.freeze());
  for (const journal::ProcessId& member : copy.members()) {
    const auto process = procfs::Process::open(member.pid(), member.start_time());
    const Status moved = process ? to.add(*process) : process.error();
    if (!moved && moved.error().code() != Code::kNotFound) return moved;
  }
  return from.thaw();
}

/// The group to which a resume returns the copy: its container's, or that of its namespace's init.
Result<std::string> home_of(const journal::Began& began, const journal::Restored& copy,
                            const cgroups::Group& group) {
  if (began.has_container()) return began.container().group();
  return group.home_of(copy.init().pid());
}

/// The records of a job that was suspended here, from Detaching on; it resumes in the group `home`.
std::vector<journal::Record> records_of_suspension(const commit::DestinationLog& log,
                                                   const std::string& home) {
  std::vector<journal::Record> records(3);
  for (int i = 0; i < copy_of(log).members_size(); ++i) {
    records[0].mutable_detaching()->add_homes(home);
  }
  *records[1].mutable_keeper_started() =
      log.journal().last(journal::Record::kKeeperStarted)->keeper_started();
  records[2].mutable_suspended();
  return records;
}

/// Makes a copy that has arrived suspended a suspended job of this host, with a journal of its own.
/// Does nothing if that journal exists: the job may have been resumed, and have moved on.
Status hand_to_suspension(const commit::DestinationLog& log, const worker::Config& config,
                          const cgroups::Group& group) {
  const journal::Restored& copy = copy_of(log);
  const std::filesystem::path state_dir = log.journal().path().parent_path().parent_path();
  journal::Began began = log.journal().began();
  const Uuid suspension = to_uuid(began.suspends());
  const auto path = journal::path_of(state_dir, suspension, journal::Began::SOURCE);
  std::error_code error;
  if (std::filesystem::exists(path, error)) return {};
  GCR_TRY(enter_container(log.journal(), copy, config));
  GCR_TRY(move_copy(copy, group, group_named_after(path)));
  GCR_ASSIGN(const std::string home, home_of(began, copy, group));
  began.clear_suspends();
  began.clear_peer();
  began.clear_peer_name();
  *began.mutable_members() = copy.members();
  GCR_TRY(commit::SourceLog::create(state_dir, suspension, std::move(began),
                                    records_of_suspension(log, home)));
  return fault::point("destination.suspended");
}

/// Takes the step `event` unless the copy is lost, and checks the copy again. True: the copy is
/// lost and the journal is aborted.
Result<bool> advance_unless_lost(commit::DestinationLog& log, DestinationEvent event,
                                 journal::Record record) {
  GCR_TRY(fault::point("destination.told"));
  GCR_ASSIGN(const bool lost, abort_if_lost(log));
  if (lost) return true;
  GCR_TRY(log.advance(event, std::move(record)));
  GCR_TRY(fault::point("destination.committed"));
  return abort_if_lost(log);
}

}  // namespace

const journal::Restored& copy_of(const commit::DestinationLog& log) {
  return log.journal().last(journal::Record::kRestored)->restored();
}

Result<bool> abort_if_lost(commit::DestinationLog& log) {
  const Status found = find_copy(log);
  if (found) return false;
  if (found.error().code() != Code::kNotFound) return found.error();
  journal::Record record =
      aborted(found.error().while_doing("the restored process ended before it was released"));
  record.mutable_aborted()->set_copy_lost(true);
  GCR_TRY(log.advance(DestinationEvent::kCopyLost, std::move(record)));
  return true;
}

Result<std::string> release_copy(commit::DestinationLog& log, const worker::Config& config,
                                 const cgroups::Group& group, DestinationEvent event,
                                 journal::Record record) {
  if (log.state() == DestinationState::kRestored) {
    GCR_ASSIGN(const bool lost, advance_unless_lost(log, event, std::move(record)));
    if (lost) return std::string();
  }
  if (!log.journal().began().suspends().empty()) {
    GCR_TRY(hand_to_suspension(log, config, group));
    GCR_TRY(join_container(log.journal().began(), group));
    return std::string();
  }
  GCR_ASSIGN(std::string ended, join_job(log.journal(), copy_of(log), config, group));
  if (!ended.empty()) return ended;
  GCR_TRY(enter_container(log.journal(), copy_of(log), config));
  GCR_TRY(enter_network(log.journal().began(), copy_of(log)));
  const Status resumed = undo::resume_restored(copy_of(log), group);
  // The journal is committed: a process that has ended by now ended here.
  if (!resumed && resumed.error().code() != Code::kNotFound) return resumed.error();
  GCR_TRY(join_container(log.journal().began(), group));
  return ended;
}

Status finish_running(commit::DestinationLog& log, const std::string& ended) {
  const Status found = find_copy(log);
  if (!found && found.error().code() != Code::kNotFound) return found;
  const bool arrives_suspended = !log.journal().began().suspends().empty();
  // The files that came with the copy now belong to it.
  GCR_TRY(journal::forget_files(log.journal().path()));
  GCR_TRY(log.advance(
      DestinationEvent::kResumed,
      found ? finished(arrives_suspended ? "the process is suspended here" : "the process runs",
                       journal::root_pid(copy_of(log).members()))
            : finished(ended.empty() ? "the process has ended here" : ended)));
  return fault::point("destination.finished");
}

Status destroy_copy(commit::DestinationLog& log, const cgroups::Group& group, DestinationEvent why,
                    journal::Record record) {
  if (log.state() != DestinationState::kAborted) GCR_TRY(log.advance(why, std::move(record)));
  const bool voted = log.journal().last(journal::Record::kRestored) != nullptr;
  if (voted && !host_was_restarted(log.journal().began())) {
    GCR_TRY(undo::destroy_restored(copy_of(log), group));
  }
  if (!host_was_restarted(log.journal().began())) GCR_TRY(end_container(log.journal()));
  GCR_TRY(group.destroy());
  const auto keeper = keeper_of(log.journal().records(), Kept::kCopy);
  if (keeper) GCR_TRY(keeper::end_keeper(*keeper));
  GCR_TRY(memory_files::release(log.journal().path(), host_was_restarted(log.journal().began()),
                                memory_files::Which::kMade));
  return log.advance(DestinationEvent::kCleared, finished("nothing is left"));
}

}  // namespace gcr::finish

#include "migrate-agent/settlement/destination.h"

#include "migrate-agent/journal/held_files.h"
#include "migrate-agent/memory_files/release.h"
#include "migrate-agent/recovery/recovery.h"
#include "migrate-agent/settlement/records.h"
#include "migrate-agent/settlement/slurm_job.h"

namespace gcr::settlement {
namespace {

using commit::DestinationEvent;
using commit::DestinationState;

Status find_copy(const commit::DestinationLog& log) {
  if (host_was_restarted(log.journal().began())) {
    return Error(Code::kNotFound, "its host was restarted");
  }
  return recovery::find_restored(copy_of(log));
}

}  // namespace

const journal::Restored& copy_of(const commit::DestinationLog& log) {
  return log.journal().last(journal::Record::kRestored)->restored();
}

Result<bool> give_up_lost_copy(commit::DestinationLog& log) {
  const Status found = find_copy(log);
  if (found) return false;
  if (found.error().code() != Code::kNotFound) return found.error();
  journal::Record record =
      aborted(found.error().while_doing("the restored process ended before it was let go"));
  record.mutable_aborted()->set_copy_lost(true);
  GCR_TRY(log.advance(DestinationEvent::kCopyLost, std::move(record)));
  return true;
}

namespace {

/// Whether it was taken back: true if the journal is aborted now.
Result<bool> decide(commit::DestinationLog& log, DestinationEvent told, journal::Record record) {
  GCR_TRY(fault::point("destination.told"));
  GCR_ASSIGN(const bool lost, give_up_lost_copy(log));
  if (lost) return true;
  GCR_TRY(log.advance(told, std::move(record)));
  GCR_TRY(fault::point("destination.committed"));
  return give_up_lost_copy(log);
}

}  // namespace

Result<std::string> let_go(commit::DestinationLog& log, const agent::Config& config,
                           const cgroups::Group& group, DestinationEvent told,
                           journal::Record record) {
  if (log.state() == DestinationState::kRestored) {
    GCR_ASSIGN(const bool lost, decide(log, told, std::move(record)));
    if (lost) return std::string();
  }
  GCR_ASSIGN(std::string ended, join_job(log.journal(), copy_of(log), config, group));
  if (!ended.empty()) return ended;
  const Status resumed = recovery::resume_restored(copy_of(log), group);
  // Committed is committed: a process that has ended by now has ended here.
  if (!resumed && resumed.error().code() != Code::kNotFound) return resumed.error();
  return ended;
}

Status finish_running(commit::DestinationLog& log, const std::string& ended) {
  const Status found = find_copy(log);
  if (!found && found.error().code() != Code::kNotFound) return found;
  // The files that came with the copy are its own now.
  GCR_TRY(journal::forget_files(log.journal().path()));
  GCR_TRY(log.advance(DestinationEvent::kResumed,
                      found
                          ? finished("the process runs", journal::root_pid(copy_of(log).members()))
                          : finished(ended.empty() ? "the process has ended here" : ended)));
  return fault::point("destination.finished");
}

Status clear(commit::DestinationLog& log, const cgroups::Group& group, DestinationEvent why,
             journal::Record record) {
  if (log.state() != DestinationState::kAborted) GCR_TRY(log.advance(why, std::move(record)));
  const bool voted = log.journal().last(journal::Record::kRestored) != nullptr;
  if (voted && !host_was_restarted(log.journal().began())) {
    GCR_TRY(recovery::destroy_restored(copy_of(log), group));
  }
  GCR_TRY(group.destroy());
  GCR_TRY(memory_files::release(log.journal().path(), host_was_restarted(log.journal().began()),
                                memory_files::Which::kMade));
  return log.advance(DestinationEvent::kCleared, finished("nothing is left"));
}

}  // namespace gcr::settlement

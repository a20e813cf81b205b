#include "migrate-agent/settlement/destination.h"

#include "migrate-agent/journal/held_files.h"
#include "migrate-agent/memory_files/release.h"
#include "migrate-agent/recovery/recovery.h"
#include "migrate-agent/settlement/records.h"

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

Status let_go(commit::DestinationLog& log, const cgroups::Group& group, DestinationEvent told,
              journal::Record record) {
  if (log.state() == DestinationState::kRestored) {
    GCR_TRY(fault::point("destination.told"));
    GCR_ASSIGN(bool lost, give_up_lost_copy(log));
    if (lost) return {};
    GCR_TRY(log.advance(told, std::move(record)));
    GCR_TRY(fault::point("destination.committed"));
    GCR_ASSIGN(lost, give_up_lost_copy(log));
    if (lost) return {};
  }
  const Status resumed = recovery::resume_restored(copy_of(log), group);
  // Committed is committed: a process that has ended by now has ended here.
  if (!resumed && resumed.error().code() == Code::kNotFound) return {};
  return resumed;
}

Status finish_running(commit::DestinationLog& log) {
  const Status found = find_copy(log);
  if (!found && found.error().code() != Code::kNotFound) return found;
  // The files that came with the copy are its own now.
  GCR_TRY(journal::forget_files(log.journal().path()));
  GCR_TRY(log.advance(DestinationEvent::kResumed,
                      found
                          ? finished("the process runs", journal::root_pid(copy_of(log).members()))
                          : finished("the process has ended here")));
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

#include "migrate-agent/roles/lost_copy.h"

#include "migrate-agent/recovery/recovery.h"
#include "migrate-agent/roles/records.h"
#include "migrate-agent/roles/recovery_roles.h"

namespace gcr::agent {
namespace {

Status find_copy(const journal::Journal& journal) {
  if (host_was_restarted(journal.began())) {
    return Error(Code::kNotFound, "its host was restarted");
  }
  const journal::Restored& copy = journal.last(journal::Record::kRestored)->restored();
  return recovery::find_restored(copy);
}

}  // namespace

Result<bool> give_up_lost_copy(commit::DestinationLog& log) {
  const Status found = find_copy(log.journal());
  if (found) return false;
  if (found.error().code() != Code::kNotFound) return found.error();
  journal::Record record =
      aborted(found.error().while_doing("the restored process ended before it was let go"));
  record.mutable_aborted()->set_copy_lost(true);
  GCR_TRY(log.advance(commit::DestinationEvent::kCopyLost, std::move(record)));
  return true;
}

}  // namespace gcr::agent

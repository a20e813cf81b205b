// Receives the memory files that come with the job.
#include "migrate-agent/commit/journal/held_files.h"
#include "migrate-agent/migration/destination/course.h"
#include "migrate-agent/process/memory_files/incoming.h"

namespace gcr::migration::destination {

/// Compares the memory files that the job has after its dump, as preflight did before, and asks
/// for those that this host lacks.
Status Course::carry(const proto::CarryRequest& request, proto::CarryReply& reply) {
  GCR_TRY(expect(commit::DestinationState::kBuilding, "CarryRequest"));
  findings::Findings findings(findings::Side::kDestination);
  GCR_ASSIGN(files_, memory_files::plan(request.files(), request.boot_id(), findings));
  if (findings.has_blocker()) {
    return Error(Code::kRefused, findings::reason_of(findings.list()));
  }
  for (std::size_t place = 0; place < files_.size(); ++place) {
    if (!files_[place].shared) reply.add_wanted(static_cast<std::uint32_t>(place));
  }
  return {};
}

/// Creates the files before CRIU opens them. Their names are on disk before they are given.
Status Course::make_files(const proto::RestoreRequest& request) {
  std::vector<proto::Credentials> members;
  for (const proto::DumpedMember& member : request.members()) {
    if (!member.credentials().empty()) members.push_back(member.credentials(0));
  }
  GCR_ASSIGN(made_files_,
             memory_files::Incoming::make(std::move(files_), room_->image_directory(), members));
  if (made_files_->held().files().empty()) return {};
  GCR_TRY(journal::keep_files(log_->journal().path(), made_files_->held()));
  return made_files_->give_names();
}

}  // namespace gcr::migration::destination

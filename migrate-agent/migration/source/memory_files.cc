// Sends the job's memory files to the target.
#include <fmt/format.h>

#include "migrate-agent/commit/journal/held_files.h"
#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/migration/source/course.h"
#include "migrate-agent/process/memory_files/incoming.h"
#include "migrate-agent/process/memory_files/outgoing.h"
#include "migrate-agent/process/memory_files/release.h"

namespace gcr::migration::source {
namespace {

using NamedFiles = std::vector<process::NamedFile>;

const std::filesystem::path& journal_of(const Begun& begun) {
  return begun.course.run.log->journal().path();
}

/// The journal's entry of a file that stays at the source until the commit and is removed then.
journal::HeldFile held(const memory_files::OutgoingFile& file) {
  journal::HeldFile held;
  held.set_device(file.fact.device());
  held.set_inode(file.fact.inode());
  *held.mutable_carried() = file.fact.names();
  *held.mutable_owner() = file.owner;
  return held;
}

}  // namespace

Result<memory_files::Renamed> name_memory_files(const Begun& begun) {
  memory_files::Renamed renamed;
  std::vector<std::pair<pid_t, NamedFiles>> named;
  for (const pid_t pid : procfs::tree(begun.processes.pid())) {
    auto files = process::named_files(pid, false);
    if (files) named.emplace_back(pid, std::move(*files));
  }
  std::vector<memory_files::Member> members;
  for (const auto& [pid, files] : named) members.push_back({pid, files});
  const memory_files::Outgoing outgoing = memory_files::find(members);
  const journal::HeldFiles wanted = memory_files::wanted_names(outgoing, renamed);
  if (wanted.files().empty()) return renamed;
  GCR_TRY(journal::keep_files(journal_of(begun), wanted));
  GCR_TRY(memory_files::give_names(outgoing));
  return renamed;
}

Status unname_memory_files(const Begun& begun, const memory_files::Renamed& renamed) {
  if (renamed.empty()) return {};
  return memory_files::release(journal_of(begun), false, memory_files::Which::kMade,
                               pids_of(begun.claimed.members));
}

Status carry_memory_files(const Begun& begun, images::Sink& sink,
                          const std::vector<memory_files::Member>& members) {
  const memory_files::Outgoing outgoing = memory_files::find(members);
  const std::string reason = findings::reason_of(outgoing.findings.list());
  if (!reason.empty()) return Error(Code::kRefused, reason);
  if (outgoing.files.empty()) return {};
  proto::CarryRequest request;
  GCR_ASSIGN(*request.mutable_boot_id(), journal::boot_id());
  for (const auto& file : outgoing.files) *request.add_files() = file.fact;
  GCR_ASSIGN(const proto::CarryReply reply, begun.claimed.target->carry(request));
  journal::HeldFiles carried;
  for (const std::uint32_t place : reply.wanted()) {
    if (place >= outgoing.files.size()) {
      return Error(Code::kProtocol,
                   fmt::format("the destination wants memory file {}, but the job has only {}",
                               place, outgoing.files.size()));
    }
    *carried.add_files() = held(outgoing.files[place]);
    GCR_ASSIGN(UniqueFd content, memory_files::open(outgoing.files[place]));
    GCR_TRY(sink.take(memory_files::image_name(place), std::move(content)));
  }
  if (carried.files().empty()) return {};
  return journal::keep_files(journal_of(begun), carried);
}

}  // namespace gcr::migration::source

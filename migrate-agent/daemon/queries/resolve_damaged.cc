// Resolves a migration whose journal is damaged. It has no owner, and no agent knows what was
// decided, so an operator decides alone. The intact records name the processes; the missing ones
// are written anew as if every step that may have happened had happened, followed by the decision,
// and recovery does the rest.
#include <fmt/format.h>

#include <algorithm>

#include "migrate-agent/daemon/queries/journals.h"
#include "migrate-agent/daemon/queries/requests.h"
#include "migrate-agent/linux/procfs/procfs.h"

namespace gcr::daemon {
namespace {

using journal::Began;
using journal::Record;

Result<journal::ProcessId> identify(pid_t pid) {
  const auto stat = procfs::read_stat(pid);
  if (!stat) return Error(Code::kNotFound, fmt::format("no process {}", pid));
  journal::ProcessId id;
  id.set_pid(pid);
  id.set_start_time(stat->start_time);
  return id;
}

Error which_process() {
  return {Code::kInvalidArgument,
          "the damaged journal no longer names its process: find the process on the "
          "host and pass it with --pid"};
}

/// Identifies a restored process and its parent, the init of its PID namespace.
Result<journal::Restored> identify_restored(pid_t pid) {
  if (pid <= 0) return which_process();
  journal::Restored restored;
  GCR_ASSIGN(*restored.add_members(), identify(pid));
  GCR_ASSIGN(*restored.mutable_init(),
             identify(std::atoi(procfs::status_field(std::to_string(pid), "PPid").c_str())));
  return restored;
}

Result<Record> began_of(const journal::Entry& entry, const std::vector<Record>& good, pid_t pid) {
  if (const Record* began = journal::last(good, Record::kBegan)) return *began;
  Record record;
  Began& began = *record.mutable_began();
  began.set_migration_id(to_bytes(entry.migration));
  began.set_role(entry.role);
  GCR_ASSIGN(*began.mutable_boot_id(), journal::boot_id());
  if (entry.role == Began::DESTINATION) return record;
  if (pid <= 0) return which_process();
  GCR_ASSIGN(*began.add_members(), identify(pid));
  return record;
}

/// Returns the last intact record of this kind, or an empty one.
Record good_or_empty(const std::vector<Record>& good, Record::BodyCase kind) {
  if (const Record* found = journal::last(good, kind)) return *found;
  Record record;
  const auto* field = Record::descriptor()->FindFieldByNumber(kind);
  Record::GetReflection()->MutableMessage(&record, field);
  return record;
}

/// Rebuilds the records up to the operator's decision; see PROTOCOL.md, "Resolve".
Result<std::vector<Record>> rebuild(const journal::Entry& entry, const std::vector<Record>& good,
                                    pid_t pid) {
  GCR_ASSIGN(Record began, began_of(entry, good, pid));
  std::vector<Record> records{std::move(began)};
  if (entry.role == Began::SOURCE) {
    if (const Record* keeper = journal::last(good, Record::kKeeperStarted)) {
      records.push_back(*keeper);
    }
    for (const auto kind : {Record::kDetaching, Record::kAwaiting, Record::kCommitted}) {
      records.push_back(good_or_empty(good, kind));
      if (kind != Record::kDetaching || journal::last(good, kind) != nullptr) continue;
      records.back().mutable_detaching()->set_driver_alone(-1);
    }
    return records;
  }
  Record vote = good_or_empty(good, Record::kRestored);
  if (vote.restored().members().empty()) {
    GCR_ASSIGN(*vote.mutable_restored(), identify_restored(pid));
  }
  records.push_back(std::move(vote));
  return records;
}

Record decision_of(const proto::ResolveRequest& request, const std::string& by) {
  Record record;
  record.mutable_resolved()->set_run_here(request.decision() == proto::ResolveRequest::RUN_HERE);
  record.mutable_resolved()->set_operator_name(by);
  record.mutable_resolved()->set_damaged(true);
  return record;
}

}  // namespace

Status resolve_damaged(worker::WorkerContext& context, const journal::Entry& entry,
                       const proto::ResolveRequest& request) {
  GCR_ASSIGN(const auto good, journal::salvage(entry.path));
  if (const Record* finished = journal::last(good, Record::kFinished)) {
    return Error(Code::kRefused, "nothing is left to decide; the damaged journal says: " +
                                     finished->finished().text());
  }
  GCR_ASSIGN(std::vector<Record> records, rebuild(entry, good, request.pid()));
  records.push_back(decision_of(request, context.channel.peer().common_name));
  // Claim the migration: recovery begins when this worker ends.
  const Began& began = records.front().began();
  GCR_TRY(worker::on_io(
      context.io,
      entry.role == Began::SOURCE
          ? context.daemon.claim_processes(entry.migration, began.members(), began.ordered_by())
          : context.daemon.register_migration(entry.migration, began.ordered_by())));
  return journal::rewrite(entry.path, std::move(records));
}

}  // namespace gcr::daemon

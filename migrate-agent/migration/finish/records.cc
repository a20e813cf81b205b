#include "migrate-agent/migration/finish/records.h"

#include "migrate-agent/commit/journal/journal_files.h"
#include "migrate-agent/linux/procfs/process_handle.h"
#include "migrate-agent/migration/finish/container.h"

namespace gcr::finish {

journal::Record aborted(const Error& cause) {
  journal::Record record;
  record.mutable_aborted()->set_code(std::string(to_string(cause.code())));
  record.mutable_aborted()->set_message(cause.message());
  return record;
}

journal::Record finished(const std::string& text, pid_t pid) {
  journal::Record record;
  record.mutable_finished()->set_text(text);
  record.mutable_finished()->set_pid(pid);
  return record;
}

journal::Record resolved(bool run_here, const std::string& by) {
  journal::Record record;
  record.mutable_resolved()->set_run_here(run_here);
  record.mutable_resolved()->set_operator_name(by);
  return record;
}

cgroups::Group group_of(const journal::Journal& journal) {
  const journal::Began& began = journal.began();
  if (began.has_container() && began.role() == journal::Began::DESTINATION) {
    return group_in_container(journal).value_or(cgroups::Group());
  }
  const auto suspension = suspension_of(journal);
  return group_named_after(suspension.empty() ? journal.path() : suspension);
}

cgroups::Group group_named_after(const std::filesystem::path& journal) {
  return {cgroups::hierarchies(), cgroups::kGroupPrefix + journal.filename().string()};
}

std::filesystem::path suspension_of(const journal::Journal& journal) {
  if (journal.began().suspension().empty()) return {};
  const Uuid migration = to_uuid(journal.began().suspension());
  return journal.path().parent_path() /
         journal::path_of({}, migration, journal::Began::SOURCE).filename();
}

Result<std::optional<Uuid>> migration_of_suspended(const journal::Journal& suspension) {
  GCR_ASSIGN(const auto entries, journal::list_directory(suspension.path().parent_path()));
  for (const journal::Entry& entry : entries) {
    if (entry.role != journal::Began::SOURCE || entry.migration == suspension.migration()) continue;
    const auto contents = journal::peek(entry.path);
    if (!contents && contents.error().code() == Code::kNotFound) continue;
    GCR_TRY(contents);
    const auto& records = contents->records;
    const bool is_of_it = !records.empty() &&
                          records.front().began().suspension() == to_bytes(suspension.migration());
    const bool unknown = records.empty() && contents->damage;
    if (unknown || (is_of_it && journal::unfinished(records))) return entry.migration;
  }
  return std::nullopt;
}

std::optional<journal::ProcessId> keeper_of(std::span<const journal::Record> records, Kept kept) {
  std::optional<journal::ProcessId> keeper;
  if (host_was_restarted(records.front().began())) return keeper;
  for (const journal::Record& record : records) {
    if (!record.has_keeper_started()) continue;
    const journal::KeeperStarted& started = record.keeper_started();
    if (started.of_copy() == (kept == Kept::kCopy)) keeper = started.keeper();
  }
  return keeper;
}

Status check_freezer(const cgroups::Group& group) {
  if (group.freezes()) return {};
  return Error(Code::kRefused,
               "this host has no control group that can be frozen (cgroup v2, or the v1 freezer), "
               "so a job cannot be suspended here");
}

bool is_alive(const journal::ProcessId& id) {
  const auto process = procfs::Process::open(id.pid(), id.start_time());
  return process && !process->has_ended();
}

bool host_was_restarted(const journal::Began& began) {
  const auto now = journal::boot_id();
  return now && *now != began.boot_id();
}

}  // namespace gcr::finish

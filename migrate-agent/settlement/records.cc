#include "migrate-agent/settlement/records.h"

namespace gcr::settlement {

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
  return {cgroups::hierarchies(), cgroups::kGroupPrefix + journal.path().filename().string()};
}

std::optional<journal::ProcessId> keeper_of(const journal::Journal& journal, Kept kept) {
  std::optional<journal::ProcessId> keeper;
  if (host_was_restarted(journal.began())) return keeper;
  for (const journal::Record& record : journal.records()) {
    if (!record.has_keeper_started()) continue;
    const journal::KeeperStarted& started = record.keeper_started();
    if (started.of_copy() == (kept == Kept::kCopy)) keeper = started.keeper();
  }
  return keeper;
}

bool host_was_restarted(const journal::Began& began) {
  const auto now = journal::boot_id();
  return now && *now != began.boot_id();
}

}  // namespace gcr::settlement

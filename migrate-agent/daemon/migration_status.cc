#include "migrate-agent/daemon/migration_status.h"

#include <algorithm>

#include "migrate-agent/commit/states.h"
#include "migrate-agent/procfs/procfs.h"
#include "migrate-agent/worker/worker_client.h"

namespace gcr::agent {
namespace {

using journal::Record;

constexpr std::chrono::milliseconds kWorkerPatience = std::chrono::milliseconds(500);

/// The journal's process on this host, if the state says that it has one; it may have ended.
journal::ProcessId process_of(const std::string& state, const std::vector<Record>& records) {
  const Record* restored = journal::last(records, Record::kRestored);
  const bool is_source = records.front().began().role() == journal::Began::SOURCE;
  if (is_source && state != "confirmed") return records.front().began().process();
  if (state != "restored" && state != "committed" && state != "running") return {};
  return restored == nullptr ? journal::ProcessId() : restored->restored().process();
}

/// 0 if it has ended.
pid_t pid_of(const journal::ProcessId& process) {
  if (process.pid() <= 0) return 0;
  const auto stat = procfs::read_stat(process.pid());
  return stat && stat->start_time == process.start_time() ? process.pid() : 0;
}

void set_error(proto::MigrationStatus& status, const char* state, const Error& error) {
  status.set_state(state);
  status.set_code(std::string(to_string(error.code())));
  status.set_message(error.message());
  status.set_operator_needed(true);
}

}  // namespace

Result<Uuid> parse_id(const std::string& bytes) {
  if (bytes.size() == Uuid().bytes.size()) return to_uuid(bytes);
  return Error(Code::kInvalidArgument, "a migration id has 16 bytes");
}

journal::Entry journal_entry(const std::filesystem::path& state_dir, const Uuid& migration,
                             journal::Role role) {
  return {migration, role, journal::path_of(state_dir, migration, role)};
}

Result<std::string> state_of(const journal::Entry& entry, const journal::Contents& contents) {
  if (contents.damage) return *contents.damage;
  if (entry.role == journal::Began::SOURCE) {
    GCR_ASSIGN(const auto state, commit::replay_source(contents.records));
    return std::string(to_string(state));
  }
  GCR_ASSIGN(const auto state, commit::replay_destination(contents.records));
  return std::string(to_string(state));
}

proto::MigrationStatus status_of(const journal::Entry& entry,
                                 const Result<journal::Contents>& contents) {
  proto::MigrationStatus status;
  status.set_migration_id(to_bytes(entry.migration));
  status.set_role(std::string(journal::to_string(entry.role)));
  if (!contents) {
    set_error(status, "unreadable", contents.error());
    return status;
  }
  const std::vector<Record>& records = contents->records;
  if (!records.empty()) {
    status.set_peer(records.front().began().peer());
    status.set_command(records.front().began().command());
    status.set_ordered_by(records.front().began().ordered_by());
    status.set_began_unix_ms(records.front().unix_ms());
    status.set_changed_unix_ms(records.back().unix_ms());
  }
  const auto state = state_of(entry, *contents);
  if (!state) {
    set_error(status, "damaged", state.error());
    return status;
  }
  status.set_state(*state);
  status.set_finished(!journal::unfinished(records));
  status.set_pid(pid_of(process_of(*state, records)));
  if (const Record* aborted = journal::last(records, Record::kAborted)) {
    status.set_code(aborted->aborted().code());
    status.set_message(aborted->aborted().message());
  }
  return status;
}

asio::awaitable<void> add_worker(const std::filesystem::path& runtime_dir,
                                 const journal::Entry& entry, proto::MigrationStatus& status) {
  WorkerAddress worker{runtime_dir, entry.migration, entry.role};
  registry::ToWorker question;
  question.mutable_ask_status();
  const auto reply = co_await ask_worker(worker, question, kWorkerPatience);
  if (!reply || !reply->has_status()) co_return;
  status.set_phase(reply->status().phase());
  status.set_operator_needed(reply->status().operator_needed());
  if (reply->status().has_progress()) *status.mutable_progress() = reply->status().progress();
}

}  // namespace gcr::agent

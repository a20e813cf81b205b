#include "migrate-agent/daemon/queries/journals.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "migrate-agent/linux/procfs/procfs.h"
#include "migrate-agent/worker/runtime/worker_client.h"

namespace gcr::daemon {
namespace {

using commit::AnyState;
using commit::DestinationState;
using journal::Record;

constexpr std::chrono::milliseconds kPause = std::chrono::milliseconds(50);
constexpr std::chrono::milliseconds kWorkerPatience = std::chrono::milliseconds(500);

/// Returns the journal's processes on this host, if by its state it has any; they may have ended.
journal::ProcessIds processes_of(AnyState state, const std::vector<Record>& records) {
  if (state == AnyState(commit::SourceState::kConfirmed)) return {};
  if (state.index() == 0) return records.front().began().members();
  const Record* restored = journal::last(records, Record::kRestored);
  if (restored == nullptr || state == AnyState(DestinationState::kAborted) ||
      state == AnyState(DestinationState::kGone)) {
    return {};
  }
  return restored->restored().members();
}

/// Returns the number of the job's processes in the last record that lists them; 0 if none does.
int members_of(const std::vector<Record>& records) {
  if (const Record* restored = journal::last(records, Record::kRestored)) {
    return restored->restored().members_size();
  }
  if (const Record* detaching = journal::last(records, Record::kDetaching)) {
    return detaching->detaching().members_size();
  }
  return records.front().began().members_size();
}

bool is_alive(const journal::ProcessId& member) {
  const auto stat = procfs::read_stat(member.pid());
  return stat && stat->start_time == member.start_time();
}

void set_members(proto::MigrationStatus& status, const journal::ProcessIds& members) {
  for (const journal::ProcessId& member : members) {
    if (is_alive(member)) status.add_members(member.pid());
  }
  const pid_t root = journal::root_pid(members);
  if (root > 0 && std::ranges::count(status.members(), root) > 0) status.set_pid(root);
}

void set_error(proto::MigrationStatus& status, const char* state, const Error& error) {
  status.set_state(state);
  status.set_code(std::string(to_string(error.code())));
  status.set_message(error.message());
  status.set_operator_needed(true);
}

/// Returns the state; kDataLoss if the journal is damaged.
Result<AnyState> state_of(const journal::Entry& entry, const journal::Contents& contents) {
  if (contents.damage) return *contents.damage;
  return commit::replay(entry.role, contents.records);
}

}  // namespace

Result<KnownJournal> read_journal(const worker::WorkerContext& context, const Uuid& migration,
                                  journal::Role role) {
  KnownJournal known;
  known.entry = journal::entry(context.config.state_dir, migration, role);
  auto contents = journal::read_durable(known.entry.path);
  if (!contents && contents.error().code() == Code::kNotFound) {
    return Error(Code::kNotFound, fmt::format("this agent knows no migration {} as its {}",
                                              migration.to_string(), journal::to_string(role)));
  }
  GCR_ASSIGN(known.contents, std::move(contents));
  GCR_ASSIGN(known.state, state_of(known.entry, known.contents));
  return known;
}

Status check_permission(const worker::WorkerContext& context, const Uuid& migration) {
  if (context.permissions.everyone()) return {};
  for (const journal::Role role : {journal::Began::SOURCE, journal::Began::DESTINATION}) {
    const auto known = read_journal(context, migration, role);
    if (!known && known.error().code() == Code::kNotFound) continue;
    if (!known) {
      return Error(
          Code::kPermissionDenied,
          fmt::format("the owner of migration {} is unknown, since its journal is damaged ({}): "
                      "only operators who may move all users' processes may control it",
                      migration.to_string(), known.error().message()));
    }
    GCR_TRY(context.permissions.check(known->began().uid()));
  }
  return {};
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
    status.set_processes(static_cast<std::uint32_t>(members_of(records)));
    const journal::Began& began = records.front().began();
    status.set_moves_suspended(!began.suspension().empty() || !began.suspends().empty());
    const auto& members = records.front().began().members();
    if (!members.empty()) status.set_start_time(members[0].start_time());
  }
  const auto state = state_of(entry, *contents);
  if (!state) {
    set_error(status, "damaged", state.error());
    return status;
  }
  status.set_state(std::string(to_string(*state)));
  status.set_finished(!journal::unfinished(records));
  set_members(status, processes_of(*state, records));
  if (const Record* aborted = journal::last(records, Record::kAborted)) {
    status.set_code(aborted->aborted().code());
    status.set_message(aborted->aborted().message());
  }
  return status;
}

Result<registry::WorkerReply> ask_owner(const worker::WorkerContext& context,
                                        const journal::Entry& entry,
                                        const registry::ToWorker& question,
                                        std::chrono::milliseconds timeout) {
  const worker::WorkerAddress owner{context.config.runtime_dir, entry.migration, entry.role};
  return worker::on_io(context.io, worker::ask_worker(owner, question, timeout));
}

void add_worker(const worker::WorkerContext& context, const journal::Entry& entry,
                proto::MigrationStatus& status) {
  registry::ToWorker question;
  question.mutable_ask_status();
  const auto reply = ask_owner(context, entry, question, kWorkerPatience);
  if (!reply || !reply->has_status()) return;
  status.set_phase(reply->status().phase());
  status.set_operator_needed(reply->status().operator_needed());
  if (reply->status().has_progress()) *status.mutable_progress() = reply->status().progress();
}

void pause_before_next_poll() { std::this_thread::sleep_for(kPause); }

}  // namespace gcr::daemon

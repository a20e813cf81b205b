// Requests of migrations' other agents, and queries and orders of operators.
#include "migrate-agent/daemon/queries/requests.h"

#include <fmt/format.h>

#include <algorithm>

#include "migrate-agent/commit/states/outcome.h"
#include "migrate-agent/daemon/queries/journals.h"

namespace gcr::daemon {
namespace {

using Clock = std::chrono::steady_clock;
using journal::Began;
using journal::Record;

constexpr std::chrono::milliseconds kCancelPatience = std::chrono::seconds(10);
constexpr std::chrono::milliseconds kOrderPatience = std::chrono::seconds(5);

/// Checks that the peer's certificate is that of the migration's other agent.
Status check_peer(const worker::WorkerContext& context, std::span<const Record> records) {
  const Record* began = journal::last(records, Record::kBegan);
  const std::string expected = began == nullptr ? "" : began->began().peer_name();
  const std::string& name = context.channel.peer().common_name;
  if (!expected.empty() && expected == name) return {};
  return Error(
      Code::kPermissionDenied,
      fmt::format("the migration is with the agent \"{}\", not with \"{}\"", expected, name));
}

Error not_known(const Uuid& migration) {
  return Error(Code::kNotFound,
               fmt::format("this agent knows no migration {}", migration.to_string()));
}

/// Reads the source's journal. kRefused if this host is not the migration's source.
Result<KnownJournal> read_at_source(const worker::WorkerContext& context, const Uuid& migration) {
  auto known = read_journal(context, migration, Began::SOURCE);
  if (known || known.error().code() != Code::kNotFound) return known;
  const auto arrival = read_journal(context, migration, Began::DESTINATION);
  if (!arrival) return not_known(migration);
  return Error(Code::kRefused,
               fmt::format("orders for a migration go to its source, the agent at {}",
                           arrival->began().peer()));
}

/// Passes an order to the source's worker, which accepts it only during pre-copy. Refused later and
/// during recovery.
Status give_order(const worker::WorkerContext& context, const Uuid& migration,
                  const registry::ToWorker& order) {
  GCR_ASSIGN(const KnownJournal known, read_at_source(context, migration));
  if (!known.is(commit::SourceState::kWorking)) {
    return Error(Code::kRefused, fmt::format("migration {} accepts no more orders: it is {}",
                                             migration.to_string(), to_string(known.state)));
  }
  const auto done = ask_owner(context, known.entry, order, kOrderPatience);
  if (!done && done.error().code() == Code::kNotFound) {
    return Error(Code::kRefused,
                 fmt::format("migration {} is being rolled back: its worker is gone",
                             migration.to_string()));
  }
  GCR_TRY(done);
  return {};
}

proto::Envelope cancel_reply() {
  proto::Envelope reply;
  reply.mutable_cancel_reply();
  return reply;
}

/// Returns whether the caller may see a migration. One whose journal does not name the user is
/// visible only to those who may see all.
bool may_see(const worker::Permissions& permissions, const Result<journal::Contents>& contents) {
  if (permissions.everyone()) return true;
  if (!contents || contents->damage || contents->records.empty()) return false;
  return permissions.may_move(contents->records.front().began().uid());
}

}  // namespace

Reply answer_outcome(worker::WorkerContext& context, const Uuid& migration, bool of_vote) {
  const auto contents = journal::read_durable(journal::path_of(
      context.config.state_dir, migration, of_vote ? Began::DESTINATION : Began::SOURCE));
  const auto outcome = of_vote ? commit::vote_of(contents) : commit::outcome_of(contents);
  // It is no secret that there is no usable journal.
  if (contents && outcome != proto::OutcomeReply::UNKNOWN) {
    GCR_TRY(check_peer(context, contents->records));
  }
  proto::Envelope reply;
  reply.mutable_outcome_reply()->set_outcome(outcome);
  return reply;
}

Reply answer_commit(worker::WorkerContext& context, const Uuid& migration) {
  registry::ToWorker decide;
  decide.mutable_decide()->set_decision(registry::Decide::COMMITTED);
  decide.mutable_decide()->set_by(context.channel.peer().common_name);
  for (const auto end = Clock::now() + context.config.peer_silence() / 2; Clock::now() < end;) {
    GCR_ASSIGN(const KnownJournal known, read_journal(context, migration, Began::DESTINATION));
    GCR_TRY(check_peer(context, known.contents.records));
    auto reply = commit::commit_answer(known.state, known.contents.records);
    if (reply) return *std::move(reply);
    if (known.is(commit::DestinationState::kRestored)) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
      if (ask_owner(context, known.entry, decide, left)) continue;
    }
    pause_before_next_poll();
  }
  return Error(Code::kTimeout, "the process does not run here yet; ask again");
}

Reply answer_cancel(worker::WorkerContext& context, const Uuid& migration) {
  registry::ToWorker cancel;
  cancel.mutable_cancel()->set_why(
      fmt::format("the operator \"{}\" cancelled it", context.channel.peer().common_name));
  for (const auto end = Clock::now() + kCancelPatience; Clock::now() < end;) {
    GCR_ASSIGN(const KnownJournal known, read_at_source(context, migration));
    if (known.is(commit::SourceState::kSuspended) &&
        !journal::is_owned(known.entry.path).value_or(false)) {
      return Error(Code::kRefused,
                   fmt::format("migration {} can no longer be cancelled: its process is suspended; "
                               "`gcr-migrate resume` lets it run",
                               migration.to_string()));
    }
    const auto outcome = commit::outcome_of(std::get<commit::SourceState>(known.state));
    if (outcome == proto::OutcomeReply::ABORTED) return cancel_reply();
    if (outcome == proto::OutcomeReply::COMMITTED) {
      return Error(
          Code::kRefused,
          fmt::format("migration {} can no longer be cancelled: it is {}; the process "
                      "continues at {}",
                      migration.to_string(), to_string(known.state), known.began().peer()));
    }
    const auto passed = ask_owner(context, known.entry, cancel, kCancelPatience);
    if (passed) return cancel_reply();
    const bool no_worker = passed.error().code() == Code::kNotFound;
    // A journal before its commit without an owner is rolled back as soon as recovery starts.
    if (no_worker && !journal::is_owned(known.entry.path).value_or(false)) {
      return cancel_reply();
    }
    pause_before_next_poll();
  }
  return Error(Code::kTimeout, "the migration's worker does not reply");
}

Reply answer_continue(worker::WorkerContext& context, const Uuid& migration) {
  registry::ToWorker order;
  order.mutable_go_on();
  GCR_TRY(give_order(context, migration, order));
  proto::Envelope reply;
  reply.mutable_continue_reply();
  return reply;
}

Reply answer_adjust(worker::WorkerContext& context, const Uuid& migration,
                    const proto::AdjustRequest& request) {
  GCR_TRY(worker::check_adjustment(request));
  registry::ToWorker order;
  *order.mutable_adjust() = request;
  GCR_TRY(give_order(context, migration, order));
  proto::Envelope reply;
  reply.mutable_adjust_reply();
  return reply;
}

Reply answer_list(worker::WorkerContext& context, const proto::ListRequest& request) {
  GCR_ASSIGN(const auto entries, journal::list(context.config.state_dir));
  proto::Envelope reply;
  auto& found = *reply.mutable_list_reply()->mutable_migrations();
  for (const journal::Entry& entry : entries) {
    const auto contents = journal::peek(entry.path);
    if (!contents && contents.error().code() == Code::kNotFound) continue;  // pruned
    if (!may_see(context.permissions, contents)) continue;
    proto::MigrationStatus status = status_of(entry, contents);
    if (status.finished() && !request.finished()) continue;
    if (!status.finished()) add_worker(context, entry, status);
    *found.Add() = std::move(status);
  }
  std::ranges::sort(found, {}, &proto::MigrationStatus::began_unix_ms);
  return reply;
}

Reply answer_status(worker::WorkerContext& context, const Uuid& migration) {
  proto::Envelope reply;
  proto::StatusReply& answer = *reply.mutable_status_reply();
  for (const journal::Role role : {Began::SOURCE, Began::DESTINATION}) {
    const auto entry = journal::entry(context.config.state_dir, migration, role);
    const auto contents = journal::read(entry.path);
    if (!contents && contents.error().code() == Code::kNotFound) continue;
    proto::MigrationStatus& status = *answer.add_migrations();
    status = status_of(entry, contents);
    if (!status.finished()) add_worker(context, entry, status);
  }
  if (answer.migrations().empty()) return not_known(migration);
  return reply;
}

}  // namespace gcr::daemon

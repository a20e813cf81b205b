// An operator's queries and orders about migrations.
#include <fmt/format.h>

#include <algorithm>

#include "migrate-agent/commit/outcome.h"
#include "migrate-agent/requests/journals.h"
#include "migrate-agent/requests/requests.h"
#include "migrate-agent/worker/adjustment.h"

namespace gcr::agent {
namespace {

using Clock = std::chrono::steady_clock;
using journal::Began;

constexpr std::chrono::milliseconds kCancelPatience = std::chrono::seconds(10);
constexpr std::chrono::milliseconds kOrderPatience = std::chrono::seconds(5);

Error not_known(const Uuid& migration) {
  return Error(Code::kNotFound,
               fmt::format("this agent knows no migration {}", migration.to_string()));
}

/// The error for an order to a migration of which this host is not the source.
asio::awaitable<Error> no_source(WorkerContext& context, Uuid migration) {
  const auto known = co_await read_journal(context, migration, Began::DESTINATION);
  if (!known) co_return not_known(migration);
  co_return Error(Code::kRefused,
                  fmt::format("a migration takes orders at its source, the agent at {}",
                              known->began().peer()));
}

/// Passes an order to the source's worker. It is accepted during pre-copy; later, or in a recovery,
/// it is refused.
asio::awaitable<Status> give_order(WorkerContext& context, Uuid migration,
                                   registry::ToWorker order) {
  const auto known = co_await read_journal(context, migration, Began::SOURCE);
  if (!known && known.error().code() == Code::kNotFound) {
    co_return co_await no_source(context, migration);
  }
  GCR_CO_TRY(known);
  if (!known->is(commit::SourceState::kWorking)) {
    co_return Error(Code::kRefused, fmt::format("migration {} takes no orders any more: it is {}",
                                                migration.to_string(), to_string(known->state)));
  }
  const WorkerAddress owner{context.config.runtime_dir, migration, Began::SOURCE};
  const auto done = co_await ask_worker(owner, std::move(order), kOrderPatience);
  if (!done && done.error().code() == Code::kNotFound) {
    co_return Error(Code::kRefused, fmt::format("migration {} is being undone: its worker is gone",
                                                migration.to_string()));
  }
  GCR_CO_TRY(done);
  co_return Status();
}

proto::Envelope cancel_reply() {
  proto::Envelope reply;
  reply.mutable_cancel_reply();
  return reply;
}

/// Whether a live process owns the journal, as far as can be told.
asio::awaitable<bool> is_owned(WorkerContext& context, const journal::Entry& entry) {
  const auto owned =
      co_await offload(context.blocking, [&] { return journal::is_owned(entry.path); });
  co_return owned&&* owned;
}

/// A migration whose journal does not name the user belongs to nobody.
bool may_see(const Permissions& permissions, const Result<journal::Contents>& contents) {
  if (permissions.everyone()) return true;
  if (!contents || contents->damage || contents->records.empty()) return false;
  return permissions.may_move(contents->records.front().began().uid());
}

asio::awaitable<Result<std::vector<proto::MigrationStatus>>> read_all(WorkerContext& context,
                                                                      bool finished) {
  std::vector<std::pair<journal::Entry, proto::MigrationStatus>> found;
  const Status read = co_await offload(context.blocking, [&]() -> Status {
    GCR_ASSIGN(const auto entries, journal::list(context.config.state_dir));
    for (const journal::Entry& entry : entries) {
      const auto contents = journal::peek(entry.path);
      if (!contents && contents.error().code() == Code::kNotFound) continue;  // pruned
      if (!may_see(context.permissions, contents)) continue;
      proto::MigrationStatus status = status_of(entry, contents);
      if (finished || !status.finished()) found.emplace_back(entry, std::move(status));
    }
    return {};
  });
  GCR_CO_TRY(read);
  std::vector<proto::MigrationStatus> result;
  for (auto& [entry, status] : found) {
    if (!status.finished()) co_await add_worker(context.config.runtime_dir, entry, status);
    result.push_back(std::move(status));
  }
  std::ranges::sort(result, {}, &proto::MigrationStatus::began_unix_ms);
  co_return result;
}

}  // namespace

asio::awaitable<Reply> answer_cancel(WorkerContext& context, const proto::CancelRequest& request) {
  const auto id = journal::parse_id(request.migration_id());
  GCR_CO_TRY(id);
  const WorkerAddress owner{context.config.runtime_dir, *id, Began::SOURCE};
  registry::ToWorker cancel;
  cancel.mutable_cancel()->set_why(
      fmt::format("the operator \"{}\" cancelled it", context.channel.peer().common_name));
  for (const auto end = Clock::now() + kCancelPatience; Clock::now() < end;) {
    const auto known = co_await read_journal(context, *id, Began::SOURCE);
    if (!known && known.error().code() == Code::kNotFound) {
      co_return co_await no_source(context, *id);
    }
    GCR_CO_TRY(known);
    const auto outcome = commit::outcome_of(std::get<commit::SourceState>(known->state));
    if (outcome == proto::OutcomeReply::ABORTED) co_return cancel_reply();
    if (outcome == proto::OutcomeReply::COMMITTED) {
      co_return Error(Code::kRefused,
                      fmt::format("migration {} cannot be cancelled any more: it is {}; the "
                                  "process goes on at {}",
                                  id->to_string(), to_string(known->state), known->began().peer()));
    }
    const auto told = co_await ask_worker(owner, cancel, kCancelPatience);
    if (told) co_return cancel_reply();
    const bool nobody_there = told.error().code() == Code::kNotFound;
    // A journal before its commit without an owner is undone as soon as recovery starts.
    if (nobody_there && !co_await is_owned(context, known->entry)) co_return cancel_reply();
    co_await pause_before_next_look(context);
  }
  co_return Error(Code::kTimeout, "the worker that is at the migration does not answer");
}

asio::awaitable<Reply> answer_continue(WorkerContext& context,
                                       const proto::ContinueRequest& request) {
  const auto id = journal::parse_id(request.migration_id());
  GCR_CO_TRY(id);
  registry::ToWorker order;
  order.mutable_go_on();
  GCR_CO_TRY(co_await give_order(context, *id, std::move(order)));
  proto::Envelope reply;
  reply.mutable_continue_reply();
  co_return reply;
}

asio::awaitable<Reply> answer_adjust(WorkerContext& context, const proto::AdjustRequest& request) {
  const auto id = journal::parse_id(request.migration_id());
  GCR_CO_TRY(id);
  auto wanted = adjustment_of(request);
  GCR_CO_TRY(wanted);
  registry::ToWorker order;
  *order.mutable_adjust() = std::move(*wanted);
  GCR_CO_TRY(co_await give_order(context, *id, std::move(order)));
  proto::Envelope reply;
  reply.mutable_adjust_reply();
  co_return reply;
}

asio::awaitable<Reply> answer_list(WorkerContext& context, const proto::ListRequest& request) {
  auto found = co_await read_all(context, request.finished());
  GCR_CO_TRY(found);
  proto::Envelope reply;
  proto::ListReply& list = *reply.mutable_list_reply();
  for (proto::MigrationStatus& status : *found) *list.add_migrations() = std::move(status);
  co_return reply;
}

asio::awaitable<Reply> answer_status(WorkerContext& context, const proto::StatusRequest& request) {
  const auto id = journal::parse_id(request.migration_id());
  GCR_CO_TRY(id);
  proto::Envelope reply;
  proto::StatusReply& answer = *reply.mutable_status_reply();
  for (const journal::Role role : {Began::SOURCE, Began::DESTINATION}) {
    const auto entry = journal::entry(context.config.state_dir, *id, role);
    bool known = true;
    proto::MigrationStatus status;
    const Status looked = co_await offload(context.blocking, [&]() -> Status {
      const auto contents = journal::read(entry.path);
      known = contents || contents.error().code() != Code::kNotFound;
      status = status_of(entry, contents);
      return {};
    });
    GCR_CO_TRY(looked);
    if (!known) continue;
    if (!status.finished()) co_await add_worker(context.config.runtime_dir, entry, status);
    *answer.add_migrations() = std::move(status);
  }
  if (answer.migrations().empty()) co_return not_known(*id);
  co_return reply;
}

}  // namespace gcr::agent

// What the other agent of a migration asks on a connection of its own.
#include <fmt/format.h>

#include "migrate-agent/commit/outcome.h"
#include "migrate-agent/requests/journals.h"
#include "migrate-agent/requests/requests.h"

namespace gcr::agent {
namespace {

using Clock = std::chrono::steady_clock;
using journal::Began;
using journal::Record;

/// Whether the peer's certificate is that of the migration's other agent.
Status check_peer(const WorkerContext& context, std::span<const Record> records) {
  const Record* began = journal::last(records, Record::kBegan);
  const std::string expected = began == nullptr ? "" : began->began().peer_name();
  const std::string& name = context.channel.peer().common_name;
  if (!expected.empty() && expected == name) return {};
  return Error(
      Code::kPermissionDenied,
      fmt::format("the migration is with the agent \"{}\", not with \"{}\"", expected, name));
}

}  // namespace

asio::awaitable<Reply> answer_outcome(WorkerContext& context,
                                      const proto::OutcomeRequest& request) {
  const auto id = journal::parse_id(request.migration_id());
  GCR_CO_TRY(id);
  const auto entry = journal::entry(context.config.state_dir, *id, Began::SOURCE);
  Result<journal::Contents> contents = Error(Code::kInternal, "not read");
  const Status looked = co_await offload(context.blocking, [&]() -> Status {
    contents = journal::read_durable(entry.path);
    return {};
  });
  GCR_CO_TRY(looked);
  const auto outcome = commit::outcome_of(contents);
  // That there is no usable journal is not secret.
  if (contents && outcome != proto::OutcomeReply::UNKNOWN) {
    GCR_CO_TRY(check_peer(context, contents->records));
  }
  proto::Envelope reply;
  reply.mutable_outcome_reply()->set_outcome(outcome);
  co_return reply;
}

asio::awaitable<Reply> answer_commit(WorkerContext& context, const proto::CommitRequest& request) {
  const auto id = journal::parse_id(request.migration_id());
  GCR_CO_TRY(id);
  const WorkerAddress owner{context.config.runtime_dir, *id, Began::DESTINATION};
  const auto patience = context.config.peer_silence() / 2;
  registry::ToWorker decide;
  decide.mutable_decide()->set_decision(registry::Decide::COMMITTED);
  decide.mutable_decide()->set_by(context.channel.peer().common_name);
  for (const auto end = Clock::now() + patience; Clock::now() < end;) {
    const auto known = co_await read_journal(context, *id, Began::DESTINATION);
    GCR_CO_TRY(known);
    GCR_CO_TRY(check_peer(context, known->contents.records));
    auto reply = commit::commit_answer(known->state, known->contents.records);
    if (reply) co_return *std::move(reply);
    if (known->is(commit::DestinationState::kRestored)) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
      const auto acted = co_await ask_worker(owner, decide, left);
      if (acted) continue;
    }
    co_await pause_before_next_look(context);
  }
  co_return Error(Code::kTimeout, "the process does not run here yet; ask again");
}

}  // namespace gcr::agent

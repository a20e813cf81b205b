// Requests of a migration's other agent on its own connection.
#include <fmt/format.h>

#include "migrate-agent/commit/states/outcome.h"
#include "migrate-agent/daemon/queries/journals.h"
#include "migrate-agent/daemon/queries/requests.h"

namespace gcr::daemon {
namespace {

using Clock = std::chrono::steady_clock;
using journal::Began;
using journal::Record;

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

}  // namespace gcr::daemon

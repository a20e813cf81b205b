// An operator's decision about a migration that no protocol can settle, because the other host is
// gone.
#include <fmt/format.h>

#include "migrate-agent/daemon/queries/journals.h"
#include "migrate-agent/daemon/queries/requests.h"

namespace gcr::daemon {
namespace {

using Clock = std::chrono::steady_clock;
using journal::Began;
using journal::Record;
using proto::OutcomeReply;

constexpr std::chrono::milliseconds kOwnerPatience = std::chrono::seconds(60);

bool can_be_resolved(const KnownJournal& known) {
  return known.is(commit::SourceState::kCommitted) || known.is(commit::DestinationState::kRestored);
}

/// Returns the journal that waits for the other agent.
Result<KnownJournal> find(const worker::WorkerContext& context, const Uuid& migration) {
  std::string states;
  std::optional<Error> unreadable;
  for (const journal::Role role : {Began::SOURCE, Began::DESTINATION}) {
    auto known = read_journal(context, migration, role);
    if (known && can_be_resolved(*known)) return known;
    if (known) {
      states +=
          fmt::format(" The {} here is {}.", journal::to_string(role), to_string(known->state));
    } else if (known.error().code() != Code::kNotFound) {
      unreadable = known.error();
    }
  }
  if (unreadable) return *unreadable;
  if (states.empty()) {
    return Error(Code::kNotFound,
                 fmt::format("this agent knows no migration {}", migration.to_string()));
  }
  states.pop_back();
  return Error(Code::kRefused,
               "only a source that is committed and a destination that is restored can be "
               "resolved." +
                   states);
}

proto::Envelope question_for(const KnownJournal& known) {
  proto::Envelope question;
  const std::string id = to_bytes(known.entry.migration);
  if (known.entry.role == Began::SOURCE) {
    // The reply to a commit may be acted on: the source is committed.
    question.mutable_commit_request()->set_migration_id(id);
  } else {
    question.mutable_outcome_request()->set_migration_id(id);
  }
  return question;
}

/// Returns whether an operator must still decide after the other agent's reply.
bool cannot_decide(const proto::Envelope& answer) {
  if (answer.has_outcome_reply()) return answer.outcome_reply().outcome() == OutcomeReply::UNKNOWN;
  if (!answer.has_failure()) return false;
  const Code code = control::from_failure(answer.failure()).code();
  return code == Code::kNotFound || code == Code::kRefused;
}

/// Succeeds if the other agent cannot be reached or cannot decide either.
Status check_peer_is_gone(const worker::WorkerContext& context, const KnownJournal& known) {
  GCR_ASSIGN(const auto peer, context.other_agent(known.began()));
  const proto::Envelope question = question_for(known);
  const auto answer =
      worker::on_io(context.io, control::ask(peer, known.entry.migration, question));
  if (answer && cannot_decide(*answer)) return {};
  const bool lost = !answer && (answer.error().code() == Code::kUnavailable ||
                                answer.error().code() == Code::kTimeout);
  if (lost) return {};
  return Error(
      Code::kRefused,
      fmt::format("the agent at {} replies, so it is not gone, and the two agents "
                  "settle the migration themselves{}",
                  known.began().peer(), answer ? "" : " (" + answer.error().message() + ")"));
}

/// Passes the decision to the journal's owner: there is a recovery, or one starts soon.
Status deliver(const worker::WorkerContext& context, const KnownJournal& known,
               const proto::ResolveRequest& request) {
  const bool run_here = request.decision() == proto::ResolveRequest::RUN_HERE;
  registry::ToWorker decide;
  decide.mutable_decide()->set_decision(run_here ? registry::Decide::RUN_HERE
                                                 : registry::Decide::DISCARD_HERE);
  decide.mutable_decide()->set_by(context.channel.peer().common_name);
  for (const auto end = Clock::now() + kOwnerPatience; Clock::now() < end;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    const auto acted = ask_owner(context, known.entry, decide, left);
    if (acted) return {};
    const Code code = acted.error().code();
    if (code != Code::kNotFound && code != Code::kUnavailable) return acted.error();
    GCR_ASSIGN(const KnownJournal now,
               read_journal(context, known.entry.migration, known.entry.role));
    const Record* resolved = now.last(Record::kResolved);
    if (resolved != nullptr && resolved->resolved().run_here() == run_here) return {};
    if (!can_be_resolved(now)) {
      return Error(Code::kRefused, fmt::format("the migration was settled meanwhile: it is {}",
                                               to_string(now.state)));
    }
    pause_before_next_poll();
  }
  return Error(Code::kTimeout, "no worker has accepted the decision in time; try again");
}

Status check(const proto::ResolveRequest& request) {
  if (!request.peer_is_gone()) {
    return Error(Code::kInvalidArgument,
                 "a migration is resolved by hand only if the other host is gone for good: confirm "
                 "that its copy of the process will never run again, or there would be two "
                 "running copies");
  }
  if (request.decision() != proto::ResolveRequest::RUN_HERE &&
      request.decision() != proto::ResolveRequest::DISCARD_HERE) {
    return Error(Code::kInvalidArgument,
                 "decide either to run the copy on this host or to discard it");
  }
  return {};
}

/// Returns the journal of `migration` that is damaged, if there is one.
std::optional<journal::Entry> find_damaged(const worker::WorkerContext& context,
                                           const Uuid& migration) {
  for (const journal::Role role : {Began::SOURCE, Began::DESTINATION}) {
    const auto known = read_journal(context, migration, role);
    if (!known && known.error().code() == Code::kDataLoss) {
      return journal::entry(context.config.state_dir, migration, role);
    }
  }
  return std::nullopt;
}

}  // namespace

Reply answer_resolve(worker::WorkerContext& context, const Uuid& migration,
                     const proto::ResolveRequest& request) {
  GCR_TRY(check(request));
  proto::Envelope reply;
  proto::ResolveReply& answer = *reply.mutable_resolve_reply();
  if (const auto damaged = find_damaged(context, migration)) {
    GCR_TRY(resolve_damaged(context, *damaged, request));
    answer.set_text("decided; the damaged journal is kept, and recovery continues");
    *answer.mutable_status() = status_of(*damaged, journal::read(damaged->path));
    return reply;
  }
  GCR_ASSIGN(const KnownJournal known, find(context, migration));
  GCR_TRY(check_peer_is_gone(context, known));
  GCR_TRY(deliver(context, known, request));
  GCR_ASSIGN(const KnownJournal now, read_journal(context, migration, known.entry.role));
  const Record* finished = now.last(Record::kFinished);
  answer.set_text(finished == nullptr ? "decided; the agent carries it out"
                                      : finished->finished().text());
  *answer.mutable_status() = status_of(now.entry, now.contents);
  return reply;
}

}  // namespace gcr::daemon

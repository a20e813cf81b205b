#include "migrate-agent/commit/outcome.h"

namespace gcr::commit {

using proto::OutcomeReply;

OutcomeReply::Outcome outcome_of(SourceState state) {
  switch (state) {
    case SourceState::kCommitted:
    case SourceState::kDiscarded:
    case SourceState::kConfirmed:
      return OutcomeReply::COMMITTED;
    case SourceState::kAborted:
    case SourceState::kUndone:
      return OutcomeReply::ABORTED;
    default:
      return OutcomeReply::UNDECIDED;
  }
}

OutcomeReply::Outcome outcome_of(const Result<journal::Contents>& read) {
  if (!read) {
    return read.error().code() == Code::kNotFound ? OutcomeReply::UNKNOWN : OutcomeReply::UNDECIDED;
  }
  if (read->damage) return OutcomeReply::UNKNOWN;
  const auto state = replay_source(read->records);
  return state ? outcome_of(*state) : OutcomeReply::UNKNOWN;
}

CommitAnswer answer_of(const proto::Envelope& reply) {
  if (reply.has_copy_lost()) return reply.copy_lost();
  return reply.commit_reply();
}

}  // namespace gcr::commit

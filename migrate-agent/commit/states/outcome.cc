#include "migrate-agent/commit/states/outcome.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/control/wire.h"

namespace gcr::commit {

using journal::Record;
using proto::OutcomeReply;

namespace {

/// Returns the average rate of sending VRAM in bytes per second; 0 if nothing was sent.
double sending_rate(const proto::MigrateReport& report) {
  double bytes = 0;
  double seconds = 0;
  for (const proto::Round& round : report.rounds()) {
    if (round.rate_bytes_per_s() <= 0) continue;
    bytes += static_cast<double>(round.sent_bytes());
    seconds += static_cast<double>(round.sent_bytes()) / round.rate_bytes_per_s();
  }
  return seconds > 0 ? bytes / seconds : 0;
}

OutcomeReply::Outcome vote_of(DestinationState state) {
  switch (state) {
    case DestinationState::kRestored:
    case DestinationState::kCommitted:
    case DestinationState::kRunning:
      return OutcomeReply::VOTED;
    case DestinationState::kAborted:
    case DestinationState::kGone:
      return OutcomeReply::ABORTED;
    default:
      return OutcomeReply::UNDECIDED;
  }
}

/// Answers from a journal of this role: UNDECIDED if it cannot be read now, UNKNOWN if it is
/// missing or damaged, else `answer` for its state.
template <class State>
OutcomeReply::Outcome answer_from(const Result<journal::Contents>& read, journal::Role role,
                                  OutcomeReply::Outcome (*answer)(State)) {
  if (!read) {
    return read.error().code() == Code::kNotFound ? OutcomeReply::UNKNOWN : OutcomeReply::UNDECIDED;
  }
  if (read->damage) return OutcomeReply::UNKNOWN;
  const auto state = replay(role, read->records);
  return state ? answer(std::get<State>(*state)) : OutcomeReply::UNKNOWN;
}

}  // namespace

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
  return answer_from<SourceState>(read, journal::Began::SOURCE, outcome_of);
}

OutcomeReply::Outcome vote_of(const Result<journal::Contents>& read) {
  return answer_from<DestinationState>(read, journal::Began::DESTINATION, vote_of);
}

std::optional<Result<proto::Envelope>> commit_answer(AnyState state,
                                                     std::span<const Record> records) {
  proto::Envelope reply;
  const Record* aborted = journal::last(records, Record::kAborted);
  switch (std::get<DestinationState>(state)) {
    case DestinationState::kRunning:
      reply.mutable_commit_reply()->set_pid(
          journal::last(records, Record::kFinished)->finished().pid());
      if (reply.commit_reply().pid() == 0) return reply;
      for (const auto& member : journal::last(records, Record::kRestored)->restored().members()) {
        reply.mutable_commit_reply()->add_pids(member.pid());
      }
      return reply;
    case DestinationState::kAborted:
    case DestinationState::kGone:
      if (aborted != nullptr && aborted->aborted().copy_lost()) {
        reply.mutable_copy_lost()->set_reason(aborted->aborted().message());
        return reply;
      }
      return Error(Code::kRefused, fmt::format("this host has abandoned its copy: {}",
                                               aborted == nullptr ? "an operator's decision"
                                                                  : aborted->aborted().message()));
    case DestinationState::kBuilding:
      return Error(Code::kProtocol, "this host has not restored the process yet");
    default:
      return std::nullopt;
  }
}

proto::MigrateReport report_of(std::span<const Record> records) {
  proto::MigrateReport report;
  const Record* aborted = journal::last(records, Record::kAborted);
  report.set_migrated(aborted == nullptr && journal::last(records, Record::kCommitted) != nullptr);
  if (aborted != nullptr) report.set_code(aborted->aborted().code());
  if (journal::last(records, Record::kResuming) != nullptr) {
    report.mutable_suspension()->set_resumed(true);
    report.mutable_suspension()->set_done(!journal::unfinished(records));
  }
  if (const Record* finished = journal::last(records, Record::kFinished)) {
    if (finished->finished().checkpointed()) {
      report.set_migrated(true);
      report.clear_code();
    }
    report.set_message(finished->finished().text());
  }
  return report;
}

registry::Outcome outcome_for_daemon(journal::Began migration, proto::MigrateReport report,
                                     registry::Outcome::Left left, unsigned journal_errors) {
  registry::Outcome outcome;
  outcome.set_left(left);
  outcome.set_journal_errors(journal_errors);
  outcome.set_rate_bytes_per_s(sending_rate(report));
  auto* phases = report.mutable_phases();
  const auto elsewhere = [own = journal::to_string(migration.role())](const auto& phase) {
    return phase.host() != own;
  };
  phases->erase(std::remove_if(phases->begin(), phases->end(), elsewhere), phases->end());
  *outcome.mutable_report() = std::move(report);
  *outcome.mutable_migration() = std::move(migration);
  return outcome;
}

CommitAnswer answer_of(const proto::Envelope& reply) {
  if (!reply.has_copy_lost()) return reply.commit_reply();
  return Error(Code::kNotFound, "the destination lost its copy before the copy ran: " +
                                    control::printable(reply.copy_lost().reason()));
}

}  // namespace gcr::commit

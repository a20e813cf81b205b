// Answers about a migration that an agent derives from its journal alone, and the reply to the
// source's commit.
#pragma once

#include <optional>
#include <span>
#include <variant>

#include "migrate-agent/commit/journal/journal.h"
#include "migrate-agent/commit/states/states.h"
#include "proto/control.pb.h"
#include "proto/registry.pb.h"
#include "src/base/result.h"

namespace gcr::commit {

/// Answers an OutcomeRequest at the source: COMMITTED or ABORTED as soon as the journal records it;
/// UNDECIDED before.
proto::OutcomeReply::Outcome outcome_of(SourceState state);

/// Answers from the result of journal::read_durable(). UNKNOWN if there is no journal or it is
/// damaged: an operator must decide. UNDECIDED if it cannot be read now.
proto::OutcomeReply::Outcome outcome_of(const Result<journal::Contents>& read);

/// Answers an OutcomeRequest with `of_vote` at the destination: VOTED as soon as its journal
/// records the vote, ABORTED once it has abandoned its copy. UNKNOWN and UNDECIDED as for
/// outcome_of().
proto::OutcomeReply::Outcome vote_of(const Result<journal::Contents>& read);

/// Answers a CommitRequest at the destination with CommitReply, CopyLost or a Failure; none while
/// its copy waits for the commit. `records` are those that led to `state`.
std::optional<Result<proto::Envelope>> commit_answer(AnyState state,
                                                     std::span<const journal::Record> records);

/// Summarises how a migration ended, from its records, for the daemon of either side.
proto::MigrateReport report_of(std::span<const journal::Record> records);

/// How `migration` ended in its role, from `report`, for the daemon, and what is `left` of it on
/// this host. Keeps the phases of the role's own host; the rate is that of all rounds that sent
/// something.
registry::Outcome outcome_for_daemon(journal::Began migration, proto::MigrateReport report,
                                     registry::Outcome::Left left, unsigned journal_errors);

/// The destination's copy runs, or the reason why the source resumes its own: the copy was lost
/// before it ran.
using CommitAnswer = std::variant<proto::CommitReply, Error>;

/// Converts `reply`, which is CommitReply or CopyLost.
CommitAnswer answer_of(const proto::Envelope& reply);

}  // namespace gcr::commit

// What an agent tells of a migration from its journal alone, and what is answered to the source's
// commit.
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

/// Of the source, to OutcomeRequest: COMMITTED or ABORTED from the moment that the journal says so;
/// UNDECIDED before.
proto::OutcomeReply::Outcome outcome_of(SourceState state);

/// The same for the result of journal::read_durable(). UNKNOWN if there is no journal, or it is
/// damaged: an operator is needed. UNDECIDED if it cannot be read now.
proto::OutcomeReply::Outcome outcome_of(const Result<journal::Contents>& read);

/// Of the destination, to OutcomeRequest with `of_vote`: VOTED from the moment that its journal
/// says so, and ABORTED once it has given its copy up. Else as above.
proto::OutcomeReply::Outcome vote_of(const Result<journal::Contents>& read);

/// Of the destination, to CommitRequest: CommitReply, CopyLost or a Failure; none while its copy
/// waits for the commit. `records` are those that led to `state`.
std::optional<Result<proto::Envelope>> commit_answer(AnyState state,
                                                     std::span<const journal::Record> records);

/// How a migration ended, for the daemon of either side.
proto::MigrateReport report_of(std::span<const journal::Record> records);

/// How `migration` ended in its role, from `report`, for the daemon, and what is `left` of it on
/// this host. Keeps the phases of the role's own host; the rate is that of all rounds that sent
/// something.
registry::Outcome ending_of(journal::Began migration, proto::MigrateReport report,
                            registry::Outcome::Left left, unsigned journal_errors);

/// The destination's copy runs, or why the source takes the process back: the copy was lost before.
using CommitAnswer = std::variant<proto::CommitReply, Error>;

/// `reply` is CommitReply or CopyLost.
CommitAnswer answer_of(const proto::Envelope& reply);

}  // namespace gcr::commit

// What an agent tells of a migration from its journal alone, and what is answered to the source's
// commit.
#pragma once

#include <optional>
#include <span>
#include <variant>

#include "migrate-agent/commit/states.h"
#include "migrate-agent/journal/format.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::commit {

/// Of the source, to OutcomeRequest: COMMITTED or ABORTED from the moment that the journal says so;
/// UNDECIDED before.
proto::OutcomeReply::Outcome outcome_of(SourceState state);

/// The same for the result of journal::read_durable(). UNKNOWN if there is no journal, or it is
/// damaged: an operator is needed. UNDECIDED if it cannot be read now.
proto::OutcomeReply::Outcome outcome_of(const Result<journal::Contents>& read);

/// Of the destination, to CommitRequest: CommitReply, CopyLost or a Failure; none while its copy
/// waits for the commit. `records` are those that led to `state`.
std::optional<Result<proto::Envelope>> commit_answer(AnyState state,
                                                     std::span<const journal::Record> records);

/// How a migration ended, for the daemon of either side.
proto::MigrateReport report_of(std::span<const journal::Record> records);

/// The destination's copy runs, or it was lost before.
using CommitAnswer = std::variant<proto::CommitReply, proto::CopyLost>;

/// `reply` is one of the two.
CommitAnswer answer_of(const proto::Envelope& reply);

}  // namespace gcr::commit

// What the source's agent answers to OutcomeRequest, from its journal alone, and what is answered
// to the source's commit.
#pragma once

#include <variant>

#include "migrate-agent/commit/states.h"
#include "migrate-agent/journal/format.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::commit {

/// COMMITTED or ABORTED from the moment that the journal says so; UNDECIDED before.
proto::OutcomeReply::Outcome outcome_of(SourceState state);

/// For the result of journal::read_durable(). UNKNOWN if there is no journal, or it is damaged: an
/// operator is needed. UNDECIDED if it cannot be read now.
proto::OutcomeReply::Outcome outcome_of(const Result<journal::Contents>& read);

/// The destination's copy runs, or it was lost before.
using CommitAnswer = std::variant<proto::CommitReply, proto::CopyLost>;

/// `reply` is one of the two.
CommitAnswer answer_of(const proto::Envelope& reply);

}  // namespace gcr::commit

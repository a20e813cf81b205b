// What the source's agent answers to OutcomeRequest: from its journal alone, whoever owns that now.
#pragma once

#include "migrate-agent/commit/states.h"
#include "migrate-agent/journal/format.h"
#include "proto/control.pb.h"
#include "src/base/result.h"

namespace gcr::commit {

/// COMMITTED or ABORTED from the moment that the journal says so; UNDECIDED before.
proto::OutcomeReply::Outcome outcome_of(SourceState state);

/// For what journal::read_durable() gave. UNKNOWN if there is no journal, or none that can be
/// believed: an operator has to look. UNDECIDED if it cannot be read just now.
proto::OutcomeReply::Outcome outcome_of(const Result<journal::Contents>& read);

}  // namespace gcr::commit

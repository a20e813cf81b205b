// What the two agents of a migration ask each other when its own connection is gone. Each question
// uses a connection of its own (proto/PROTOCOL.md, "After the connection is lost"). One attempt
// each; the caller tries again. On the thread that runs the io_context.
#pragma once

#include <asio/awaitable.hpp>

#include "src/base/uuid.h"
#include "src/control/ask.h"

namespace gcr::agent {

/// Why the source takes the process back.
Error copy_lost(const proto::CopyLost& answer);

/// Tells the destination that the migration is committed, and gives CommitReply or CopyLost.
/// kUnavailable, kTimeout: not reached, try again; kNotFound: it knows nothing of the migration;
/// kRefused: it has given its copy up, which may have run; kPermissionDenied: it is another agent.
asio::awaitable<Result<proto::Envelope>> deliver_commit(const control::AgentAddress& destination,
                                                        const Uuid& migration);

/// Asks the source. kUnavailable, kTimeout: not reached, try again; kPermissionDenied: it is
/// another agent.
asio::awaitable<Result<proto::OutcomeReply::Outcome>> ask_outcome(
    const control::AgentAddress& source, const Uuid& migration);

}  // namespace gcr::agent

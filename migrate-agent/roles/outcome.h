// What the two agents of a migration ask each other when its own connection is gone: each question
// is a connection of its own (proto/PROTOCOL.md, "After the connection is lost"). One attempt each;
// who asks tries again. On the thread that runs the io_context.
#pragma once

#include <asio/awaitable.hpp>
#include <memory>

#include "src/base/result.h"
#include "src/base/uuid.h"
#include "src/control/control_channel.h"

namespace gcr::agent {

/// How this agent reaches the other one.
struct PeerAgent {
  control::Endpoint endpoint;
  std::string name;  ///< common name of its certificate; empty: any agent's
  std::shared_ptr<asio::ssl::context> tls;
  std::string own_host;  ///< what the Hello says of this side
  std::chrono::milliseconds silence;
};

/// Tells the destination that the migration is committed. kUnavailable, kTimeout: not reached, try
/// again; kNotFound: it knows nothing of the migration; kRefused: it has given its copy up.
asio::awaitable<Result<proto::CommitReply>> deliver_commit(const PeerAgent& destination,
                                                           const Uuid& migration);

/// Asks the source. kUnavailable, kTimeout: not reached, try again.
asio::awaitable<Result<proto::OutcomeReply::Outcome>> ask_outcome(const PeerAgent& source,
                                                                  const Uuid& migration);

}  // namespace gcr::agent

// Requests to an agent, each on its own connection, and the check that a reply belongs to its
// request. Runs on the io_context's thread.
#pragma once

#include <asio/awaitable.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "src/base/result.h"
#include "src/base/uuid.h"
#include "src/control/control_channel.h"

namespace gcr::control {

/// Which agent is asked, and how.
struct AgentAddress {
  Endpoint endpoint;
  std::shared_ptr<asio::ssl::context> tls;  ///< null: local sockets alone can be used
  /// Common name that the agent's certificate must have; none: any agent of the authority is
  /// accepted; empty: the agent's identity is unknown and it is not asked.
  std::optional<std::string> name;
  std::string own_host;  ///< this host's name in the Hello; empty: the system's host name
  std::chrono::milliseconds silence;  ///< timeout for the reply; each Alive message restarts it
};

/// Sends `question` about `migration` (all zeros: about none) and returns the reply, which may be a
/// Failure: an agent that refuses was reached. kUnavailable or kTimeout if the agent was not
/// reached or was lost before it replied; kPermissionDenied, without a question sent, if another
/// agent answers there or if the name is empty.
asio::awaitable<Result<proto::Envelope>> ask(const AgentAddress& agent, Uuid migration,
                                             const proto::Envelope& question);

/// Calls ask() and check_reply(): success is the reply that belongs to the question.
asio::awaitable<Result<proto::Envelope>> ask_for_reply(const AgentAddress& agent, Uuid migration,
                                                       const proto::Envelope& question);

/// Returns `answer` if it is a reply to `request`. A Failure becomes the Error that it carries; any
/// other message is kProtocol and names `who` as the sender.
Result<proto::Envelope> check_reply(const proto::Envelope& request, Result<proto::Envelope> answer,
                                    const std::string& who);

}  // namespace gcr::control

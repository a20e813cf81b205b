// Questions to an agent, each on a connection of its own, and which replies belong to them. On the
// thread that runs the io_context.
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

/// Who is asked, and how.
struct AgentAddress {
  Endpoint endpoint;
  std::shared_ptr<asio::ssl::context> tls;  ///< null: local sockets alone can be used
  /// Common name of its certificate; none: any agent that the authority vouches for. An empty name
  /// is nobody's.
  std::optional<std::string> name;
  std::string own_host;               ///< what the Hello says of this side; empty: its host name
  std::chrono::milliseconds silence;  ///< it answers, or says that it is alive, within this
};

/// A question about `migration` (zeros: about none). The answer, which may be a Failure: an agent
/// that says no was reached. kUnavailable or kTimeout if it was not, or was lost before it
/// answered; kPermissionDenied if another agent answers there, or if the name is empty: nobody is
/// asked who is not known.
asio::awaitable<Result<proto::Envelope>> ask(const AgentAddress& agent, Uuid migration,
                                             const proto::Envelope& question);

/// The same, through check_reply(): success is the reply that belongs to the question.
asio::awaitable<Result<proto::Envelope>> ask_for_reply(const AgentAddress& agent, Uuid migration,
                                                       const proto::Envelope& question);

/// `answer`, if it is a reply to `request`. A Failure becomes the Error that it carries; kProtocol,
/// naming `who` answered, for any other message.
Result<proto::Envelope> check_reply(const proto::Envelope& request, Result<proto::Envelope> answer,
                                    const std::string& who);

}  // namespace gcr::control
